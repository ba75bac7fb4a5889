"""What machines are: records of devices, hosts and links, their files, the graph they make, its routes and drawings."""
