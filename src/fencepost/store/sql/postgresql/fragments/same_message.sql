-- A failover that loses commits hands ids and tokens out again: who holds a lost message must not touch the one that has
-- its id now. (All of a statement have one token and come to one end: whichever of them a row is, that is its own. The
-- subquery reads the list once; as one text it is read fastest.)
message_id = ANY ((SELECT %(message_ids)s::text::uuid[])::uuid[])
