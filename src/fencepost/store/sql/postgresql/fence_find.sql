SELECT token
FROM {fence}
WHERE receiver = %(receiver)s::text AND resource = %(resource)s::text
