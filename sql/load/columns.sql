-- Columns of a table and their types, in order.
select column_name, data_type from information_schema.columns
where table_schema = 'public' and table_name = %(table)s order by ordinal_position;
