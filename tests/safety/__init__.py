"""No acknowledged commit is ever lost: races, kills, crashes, lost answers, every schedule."""
