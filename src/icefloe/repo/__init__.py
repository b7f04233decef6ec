"""The operations, each written once as a coroutine that awaits only storage."""
