SELECT
    {notice}
