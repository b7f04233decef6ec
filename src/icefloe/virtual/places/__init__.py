"""Where sources are: disks, buckets, web servers, and patterns of names."""
