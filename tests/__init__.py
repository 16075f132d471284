"""The tests; a package, so that processes of the pool can import the functions they are sent."""
