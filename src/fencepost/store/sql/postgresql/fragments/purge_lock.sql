hashtextextended('fencepost purge '::text || %(table)s::text, 7021963::bigint)
