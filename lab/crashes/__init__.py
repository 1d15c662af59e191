"""Kill at every statement of every operation, of a dispatcher and of a worker; recover; judge."""
