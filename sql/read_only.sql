-- What the read-only role may see: all of it, and change nothing. Runs after every migration.

do $$
begin
    if not exists (select from pg_roles where rolname = 'armwise_read') then
        create role armwise_read nologin;
    end if;
    if not pg_has_role(current_user, 'armwise_read', 'set') then
        execute format('grant armwise_read to %I with inherit false, set true', current_user);
    end if;
exception
    when insufficient_privilege then
        raise warning 'role armwise_read: % may not make it; ask for: create role armwise_read; grant it to %',
            current_user, current_user;
end
$$;

do $$
begin
    if exists (select from pg_roles where rolname = 'armwise_read') then
        execute format('grant connect on database %I to armwise_read', current_database());
        grant usage on schema public, report to armwise_read;
        grant select on all tables in schema public, report to armwise_read;
    end if;
end
$$;

-- Opens one statement as the cursor `asked`. Postgres itself refuses several statements, and one that gives no rows.
create or replace function report.ask(statement text) returns void
language plpgsql as $$
declare
    asked refcursor := 'asked';
begin
    open asked for execute statement;
end
$$;
