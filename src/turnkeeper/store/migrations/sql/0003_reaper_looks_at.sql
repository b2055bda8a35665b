-- A renewal moves the end of a lease. With that end in an index every renewal made a new entry in each index of the table;
-- without it a renewal is a heap-only update. So the reaper has a moment of its own: it looks at an open attempt when
-- `reaper_looks_at` has come, which is never later than the lease's end, and where the lease was renewed meanwhile it moves
-- that moment to the new end. Renewals leave it alone.
ALTER TABLE attempts ADD COLUMN reaper_looks_at timestamptz;

-- The triggers keep the rule, whoever writes: also a process of the previous release, and an operator by hand.
CREATE OR REPLACE FUNCTION tk_attempt_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.ended_at IS NOT NULL THEN
        RAISE EXCEPTION 'attempt % is closed', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'attempts_closed_is_closed';
    END IF;
    IF NEW.lease_generation < OLD.lease_generation THEN
        RAISE EXCEPTION 'lease generation of attempt % would fall', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'lease_generation_monotonic';
    END IF;
    IF NEW.reaper_looks_at IS NULL OR NEW.reaper_looks_at > NEW.lease_expires_at THEN
        NEW.reaper_looks_at := NEW.lease_expires_at;
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION tk_attempt_generation_grows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM attempts WHERE run_id = NEW.run_id AND lease_generation >= NEW.lease_generation) THEN
        RAISE EXCEPTION 'lease generation % of run % is not the newest', NEW.lease_generation, NEW.run_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'lease_generation_monotonic';
    END IF;
    NEW.reaper_looks_at := NEW.lease_expires_at;
    RETURN NEW;
END $$;

UPDATE attempts SET reaper_looks_at = lease_expires_at WHERE ended_at IS NULL;
ALTER TABLE attempts ADD CONSTRAINT attempts_reaper_looks_in_time
    CHECK (ended_at IS NOT NULL OR (reaper_looks_at IS NOT NULL AND reaper_looks_at <= lease_expires_at)) NOT VALID;

DROP INDEX attempts_open_by_expiry;
CREATE INDEX attempts_open_by_look ON attempts (reaper_looks_at) WHERE ended_at IS NULL;
