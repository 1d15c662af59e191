"""What is asked of the database, as operations over one SQL file each; no I/O happens here."""
