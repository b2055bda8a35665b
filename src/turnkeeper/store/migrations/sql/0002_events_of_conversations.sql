-- R-06: that a conversation can no longer be used is an event of the conversation and of no run. The verdict that says so
-- may come after the end of the run that it is about, and nothing follows a run's end (A-03).
ALTER TABLE events ALTER COLUMN run_id DROP NOT NULL;
ALTER TABLE events ADD CONSTRAINT events_without_a_run
    CHECK (run_id IS NOT NULL OR (kind = 'conversation' AND attempt_id IS NULL)) NOT VALID;
