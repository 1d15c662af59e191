SELECT version, name, checksum FROM {migration} ORDER BY version
