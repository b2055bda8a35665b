-- The whole schema. Words are those of docs/protocol.md; every CHECK refuses a state that no code path may write.
--
-- tk_now() is the one clock of the product's SQL (L-11). It is clock_timestamp(), never now(): a statement that waited for
-- a lock must see the time after the wait. Only the test harness replaces it.

CREATE FUNCTION tk_now() RETURNS timestamptz
    LANGUAGE sql VOLATILE PARALLEL SAFE
    AS 'SELECT clock_timestamp()';

-- One sequence for the lease generations of all scopes, so that they grow over each scope and never repeat (A-01).
CREATE SEQUENCE lease_generations AS bigint;
-- The place of a run in its conversation's line. A sequence, not a count: an edit of the queue swaps numbers.
CREATE SEQUENCE queue_positions AS bigint;

-- ---------------------------------------------------------------------------------------------- owners and credentials

CREATE TABLE users (
    uid         uuid PRIMARY KEY,
    name        text NOT NULL UNIQUE CONSTRAINT users_name_form CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$'),
    role        text NOT NULL DEFAULT 'owner' CONSTRAINT users_role_known CHECK (role IN ('owner', 'admin')),
    language    text NOT NULL DEFAULT 'en' CONSTRAINT users_language_known CHECK (language IN ('en', 'zh')),
    -- how many execution trees at once; NULL: as many as the setting gives to everybody
    tree_room   integer CONSTRAINT users_tree_room_positive CHECK (tree_room > 0),
    created_at  timestamptz NOT NULL DEFAULT tk_now()
);

CREATE TABLE api_keys (
    id           uuid PRIMARY KEY,
    uid          uuid NOT NULL REFERENCES users,
    name         text NOT NULL CONSTRAINT api_keys_name_length CHECK (length(name) BETWEEN 1 AND 200),
    shown_prefix text NOT NULL,
    key_hash     bytea NOT NULL UNIQUE CONSTRAINT api_keys_key_hash_size CHECK (octet_length(key_hash) = 32),
    created_at   timestamptz NOT NULL DEFAULT tk_now(),
    last_used_at timestamptz,
    revoked_at   timestamptz
);
CREATE INDEX api_keys_by_uid ON api_keys (uid, created_at);

-- A browser's session, and the one-time link that opens it: both are only hashes here.
CREATE TABLE web_sessions (
    id          uuid PRIMARY KEY,
    uid         uuid NOT NULL REFERENCES users,
    kind        text NOT NULL CONSTRAINT web_sessions_kind_known CHECK (kind IN ('link', 'session')),
    secret_hash bytea NOT NULL UNIQUE CONSTRAINT web_sessions_secret_hash_size CHECK (octet_length(secret_hash) = 32),
    created_at  timestamptz NOT NULL DEFAULT tk_now(),
    expires_at  timestamptz NOT NULL,
    used_at     timestamptz
);

CREATE TABLE host_tokens (
    id         uuid PRIMARY KEY,
    host       text NOT NULL CONSTRAINT host_tokens_host_form CHECK (host ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$'),
    token_hash bytea NOT NULL UNIQUE CONSTRAINT host_tokens_token_hash_size CHECK (octet_length(token_hash) = 32),
    created_at timestamptz NOT NULL DEFAULT tk_now(),
    revoked_at timestamptz
);

CREATE TABLE agents (
    name           text PRIMARY KEY CONSTRAINT agents_name_form CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$'),
    definition     jsonb NOT NULL CONSTRAINT agents_definition_is_object CHECK (jsonb_typeof(definition) = 'object'),
    sha256         text NOT NULL CONSTRAINT agents_sha256_form CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    runtime_policy text NOT NULL CONSTRAINT agents_runtime_policy_known CHECK (runtime_policy IN ('retained', 'ephemeral')),
    created_at     timestamptz NOT NULL DEFAULT tk_now(),
    updated_at     timestamptz NOT NULL DEFAULT tk_now(),
    removed_at     timestamptz
);

-- ------------------------------------------------------------------------------------------------------- conversations

CREATE TABLE conversations (
    thread_id        uuid PRIMARY KEY,
    uid              uuid NOT NULL REFERENCES users,
    agent            text NOT NULL REFERENCES agents,
    kind             text NOT NULL CONSTRAINT conversations_kind_known CHECK (kind IN ('chat', 'subagent')),
    parent_thread_id uuid REFERENCES conversations,
    runtime_scope_id uuid NOT NULL,
    workdir          text NOT NULL CONSTRAINT conversations_workdir_length CHECK (workdir <> '' AND octet_length(workdir) <= 1024),
    title            text NOT NULL DEFAULT '' CONSTRAINT conversations_title_length CHECK (octet_length(title) <= 1024),
    state            text NOT NULL DEFAULT 'open' CONSTRAINT conversations_state_known CHECK (state IN ('open', 'lost', 'closed')),
    queue_paused     boolean NOT NULL DEFAULT false,
    runtime_policy   text NOT NULL CONSTRAINT conversations_runtime_policy_known CHECK (runtime_policy IN ('retained', 'ephemeral')),
    -- fixed by the first prepare of the scope, for good (protocol 3)
    provisioner      text,
    created_at       timestamptz NOT NULL DEFAULT tk_now(),
    updated_at       timestamptz NOT NULL DEFAULT tk_now(),
    -- T-04: ties a run's conversation and its scope
    UNIQUE (thread_id, runtime_scope_id),
    UNIQUE (thread_id, uid),
    -- the root conversation of the scope, of the same owner; a root is its own
    FOREIGN KEY (runtime_scope_id, uid) REFERENCES conversations (thread_id, uid),
    CONSTRAINT conversations_kind_shape CHECK ((kind = 'chat' AND parent_thread_id IS NULL AND runtime_scope_id = thread_id)
        OR (kind = 'subagent' AND parent_thread_id IS NOT NULL AND runtime_scope_id <> thread_id))
);
CREATE INDEX conversations_by_uid ON conversations (uid, thread_id DESC);
CREATE INDEX conversations_by_scope ON conversations (runtime_scope_id);

-- Overlap (`src` and `src/app`) cannot be said by an index: it is checked under the owner's row lock; equality is refused here too.
CREATE TABLE workdir_holds (
    id               uuid PRIMARY KEY,
    uid              uuid NOT NULL REFERENCES users,
    workdir          text NOT NULL,
    runtime_scope_id uuid NOT NULL,
    taken_at         timestamptz NOT NULL DEFAULT tk_now(),
    ended_at         timestamptz,
    ended_why        text,
    FOREIGN KEY (runtime_scope_id, uid) REFERENCES conversations (thread_id, uid),
    CONSTRAINT workdir_holds_end_has_why CHECK ((ended_at IS NULL) = (ended_why IS NULL))
);
CREATE UNIQUE INDEX workdir_holds_one_holder ON workdir_holds (uid, workdir) WHERE ended_at IS NULL;
CREATE UNIQUE INDEX workdir_holds_one_per_scope ON workdir_holds (runtime_scope_id) WHERE ended_at IS NULL;

CREATE TABLE subagent_relations (
    id               uuid PRIMARY KEY,
    parent_thread_id uuid NOT NULL REFERENCES conversations,
    child_thread_id  uuid NOT NULL UNIQUE REFERENCES conversations,
    creating_run_id  uuid NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT tk_now()
);

-- ---------------------------------------------------------------------------------------------------------------- runs

CREATE TABLE runs (
    id                      uuid PRIMARY KEY,
    thread_id               uuid NOT NULL,
    uid                     uuid NOT NULL,
    agent                   text NOT NULL REFERENCES agents,
    kind                    text NOT NULL CONSTRAINT runs_kind_known CHECK (kind IN ('chat', 'resume', 'subagent')),
    runtime_scope_id        uuid NOT NULL,
    root_run_id             uuid NOT NULL REFERENCES runs DEFERRABLE INITIALLY DEFERRED,
    depth                   integer NOT NULL DEFAULT 0 CONSTRAINT runs_depth_not_negative CHECK (depth >= 0),
    created_by_run_id       uuid REFERENCES runs,
    relation_id             uuid REFERENCES subagent_relations,
    request_id              uuid NOT NULL UNIQUE,
    queue_position          bigint NOT NULL DEFAULT nextval('queue_positions'),
    status                  text NOT NULL DEFAULT 'pending' CONSTRAINT runs_status_known CHECK (status IN
        ('pending', 'running', 'cancel_requested', 'recovering', 'completed', 'failed', 'cancelled', 'interrupted')),
    prompt                  text NOT NULL,
    cancel_requested_at     timestamptz,
    error_code              text CONSTRAINT runs_error_code_known CHECK (error_code IN
        ('worker_lease_expired', 'lease_feed_lost', 'execution_timeout', 'preparation_failed', 'invalid_runtime_scope',
         'manifest_persist_failed', 'sandbox_unavailable', 'sandbox_out_of_memory', 'agent_start_failed', 'agent_exited',
         'agent_protocol_error', 'session_unavailable', 'admission_refused', 'outcome_unknown', 'settlement_failed',
         'execution_tree_closed', 'cancelled', 'no_output')),
    -- what was known where it failed: {stage, delivered, exception, status, exit, stderr_tail, ...}; never a secret, a URL or a body (E-02)
    error_detail            jsonb CONSTRAINT runs_error_detail_is_object CHECK (error_detail IS NULL OR jsonb_typeof(error_detail) = 'object'),
    manifest                jsonb,
    manifest_sha256         text CONSTRAINT runs_manifest_sha256_form CHECK (manifest_sha256 ~ '^[0-9a-f]{64}$'),
    runtime_cleanup_pending boolean NOT NULL DEFAULT false,
    ready_at                timestamptz,
    -- since when nothing but its owner's room is missing: of an owner's trees the longest waiting is next
    room_wanted_at          timestamptz,
    provisioner             text,
    releases                integer NOT NULL DEFAULT 0 CONSTRAINT runs_releases_not_negative CHECK (releases >= 0),
    created_at              timestamptz NOT NULL DEFAULT tk_now(),
    started_at              timestamptz,
    ended_at                timestamptz,
    FOREIGN KEY (thread_id, runtime_scope_id) REFERENCES conversations (thread_id, runtime_scope_id),
    FOREIGN KEY (thread_id, uid) REFERENCES conversations (thread_id, uid),
    UNIQUE (id, thread_id),
    CONSTRAINT runs_manifest_has_sha256 CHECK ((manifest IS NULL) = (manifest_sha256 IS NULL)),
    CONSTRAINT runs_ready_is_pending CHECK (ready_at IS NULL OR status = 'pending'),
    CONSTRAINT runs_wants_room_is_waiting CHECK (room_wanted_at IS NULL OR (status = 'pending' AND ready_at IS NULL)),
    CONSTRAINT runs_end_is_terminal CHECK ((ended_at IS NOT NULL) = (status IN ('completed', 'failed', 'cancelled', 'interrupted'))),
    -- protocol 2: a run whose cancel was requested never ends completed, on any path
    CONSTRAINT runs_cancelled_never_completes CHECK (NOT (status = 'completed' AND cancel_requested_at IS NOT NULL)),
    CONSTRAINT runs_cancel_requested_has_time CHECK (status <> 'cancel_requested' OR cancel_requested_at IS NOT NULL),
    CONSTRAINT runs_failed_has_code CHECK (status <> 'failed' OR error_code IS NOT NULL),
    CONSTRAINT runs_code_needs_failure CHECK (status NOT IN ('pending', 'running', 'completed', 'interrupted') OR error_code IS NULL)
);
-- T-04. NOT VALID: terminal history of another shape is neither scanned nor refused; what is written now must satisfy it.
ALTER TABLE runs ADD CONSTRAINT runs_shape CHECK (
    status IN ('completed', 'failed', 'cancelled', 'interrupted')
    OR (kind = 'chat' AND runtime_scope_id = thread_id AND created_by_run_id IS NULL AND relation_id IS NULL
        AND root_run_id = id AND depth = 0)
    OR (kind = 'resume' AND runtime_scope_id = thread_id AND created_by_run_id IS NOT NULL AND relation_id IS NULL
        AND root_run_id = id AND depth = 0)
    OR (kind = 'subagent' AND created_by_run_id IS NOT NULL AND relation_id IS NOT NULL
        AND root_run_id <> id AND depth > 0)
) NOT VALID;
ALTER TABLE subagent_relations ADD FOREIGN KEY (creating_run_id) REFERENCES runs DEFERRABLE INITIALLY DEFERRED;

-- The claim reads this index alone: its cost grows neither with history nor with the waiting runs (protocol 3).
CREATE INDEX runs_ready ON runs (ready_at) WHERE ready_at IS NOT NULL;
CREATE INDEX runs_line ON runs (thread_id, queue_position) WHERE status = 'pending';
CREATE INDEX runs_live_by_scope ON runs (runtime_scope_id)
    WHERE status IN ('pending', 'running', 'cancel_requested', 'recovering');
CREATE INDEX runs_live_by_uid ON runs (uid)
    WHERE status IN ('running', 'cancel_requested', 'recovering') OR ready_at IS NOT NULL;
-- An owner's runs that wait for room, the longest waiting first, for whoever gives out what another tree left.
CREATE INDEX runs_waiting_for_room ON runs (uid, room_wanted_at, queue_position) WHERE room_wanted_at IS NOT NULL;
CREATE INDEX runs_by_uid ON runs (uid, id DESC);
CREATE INDEX runs_by_thread ON runs (thread_id, id DESC);
CREATE INDEX runs_by_root ON runs (root_run_id, depth, created_at, id);
CREATE INDEX runs_recovering ON runs (id) WHERE status = 'recovering';
CREATE INDEX runs_cleanup_pending ON runs (runtime_scope_id) WHERE runtime_cleanup_pending;
-- One line, one head: within a conversation at most one run is in a worker's or in recovery's hands.
CREATE UNIQUE INDEX runs_one_live_per_thread ON runs (thread_id)
    WHERE status IN ('running', 'cancel_requested', 'recovering');

CREATE TABLE messages (
    id         uuid PRIMARY KEY,
    thread_id  uuid NOT NULL REFERENCES conversations,
    run_id     uuid NOT NULL,
    role       text NOT NULL CONSTRAINT messages_role_known CHECK (role IN ('owner', 'assistant', 'system')),
    text       text NOT NULL,
    -- of an owner's message alone (A-05)
    delivery   text CONSTRAINT messages_delivery_known CHECK (delivery IN ('queued', 'delivering', 'delivered', 'not_delivered', 'unknown')),
    created_at timestamptz NOT NULL DEFAULT tk_now(),
    FOREIGN KEY (run_id, thread_id) REFERENCES runs (id, thread_id),
    CONSTRAINT messages_delivery_of_owner CHECK ((role = 'owner') = (delivery IS NOT NULL))
);
CREATE INDEX messages_by_thread ON messages (thread_id, id);
CREATE UNIQUE INDEX messages_one_per_run_and_role ON messages (run_id, role);

-- A-04: a completed run has an assistant message of the same conversation and run. Deferred: the run and its message are
-- written by two statements of one transaction, in whichever order.
CREATE FUNCTION tk_completed_run_has_output() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM messages
                   WHERE run_id = NEW.id AND thread_id = NEW.thread_id AND role = 'assistant') THEN
        RAISE EXCEPTION 'run % is completed without an assistant message', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'runs_completed_has_output';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER runs_completed_has_output AFTER UPDATE OF status ON runs
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.status = 'completed' AND OLD.status IS DISTINCT FROM 'completed')
    EXECUTE FUNCTION tk_completed_run_has_output();

-- A-03: terminal states are absorbing. (The cleanup flag of an ended root run still moves, C-01.)
CREATE FUNCTION tk_terminal_run_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'run % is %: it cannot become %', OLD.id, OLD.status, NEW.status
        USING ERRCODE = 'check_violation', CONSTRAINT = 'runs_terminal_is_absorbing';
END $$;
CREATE TRIGGER runs_terminal_is_absorbing BEFORE UPDATE ON runs FOR EACH ROW
    WHEN (OLD.status IN ('completed', 'failed', 'cancelled', 'interrupted')
          AND (NEW.status, NEW.error_code, NEW.ended_at, NEW.manifest_sha256)
              IS DISTINCT FROM (OLD.status, OLD.error_code, OLD.ended_at, OLD.manifest_sha256))
    EXECUTE FUNCTION tk_terminal_run_stays();

-- ------------------------------------------------------------------------------------------------------------ attempts

CREATE TABLE attempts (
    id                 uuid PRIMARY KEY,
    run_id             uuid NOT NULL REFERENCES runs,
    attempt_no         integer NOT NULL CONSTRAINT attempts_attempt_no_positive CHECK (attempt_no > 0),
    lease_generation   bigint NOT NULL UNIQUE,
    -- `host/incarnation` of whoever claimed; the process id of the child once it accepted
    lease_owner        text NOT NULL,
    claim_id           uuid NOT NULL,
    host               text NOT NULL,
    incarnation        uuid NOT NULL,
    root_run_id        uuid NOT NULL,
    token_hash         bytea NOT NULL UNIQUE CONSTRAINT attempts_token_hash_size CHECK (octet_length(token_hash) = 32),
    claimed_at         timestamptz NOT NULL DEFAULT tk_now(),
    lease_ttl_s        integer NOT NULL CONSTRAINT attempts_lease_ttl_s_positive CHECK (lease_ttl_s > 0),
    lease_expires_at   timestamptz NOT NULL,
    last_heartbeat_at  timestamptz,
    -- the prompt's turn must have ended by then; provisioner and activation tokens are valid until then
    execution_deadline timestamptz NOT NULL,
    -- no renewal after this moment: execution deadline + drain; lowered by a cancel to cancel + grace + drain (L-11)
    renewable_until    timestamptz NOT NULL,
    accepted_at        timestamptz,
    ended_at           timestamptz,
    outcome            text CONSTRAINT attempts_outcome_known CHECK (outcome IN ('completed', 'failed', 'cancelled', 'interrupted', 'released', 'lease_expired')),
    launch_failure     text,
    -- the worker's event stream: the last number taken (stored or dropped) and the bytes stored, so that neither is ever counted again
    stream_no_last     bigint NOT NULL DEFAULT 0 CONSTRAINT attempts_stream_no_last_not_negative CHECK (stream_no_last >= 0),
    stream_bytes       bigint NOT NULL DEFAULT 0 CONSTRAINT attempts_stream_bytes_not_negative CHECK (stream_bytes >= 0),
    UNIQUE (run_id, attempt_no),
    UNIQUE (host, incarnation, claim_id),
    CONSTRAINT attempts_end_has_outcome CHECK ((ended_at IS NULL) = (outcome IS NULL)),
    CONSTRAINT attempts_released_never_accepted CHECK (outcome IS DISTINCT FROM 'released' OR accepted_at IS NULL)
);
CREATE UNIQUE INDEX attempts_one_open_per_run ON attempts (run_id) WHERE ended_at IS NULL;
CREATE INDEX attempts_open_by_expiry ON attempts (lease_expires_at) WHERE ended_at IS NULL;
CREATE INDEX attempts_open_by_host ON attempts (host, root_run_id) WHERE ended_at IS NULL;

-- E-04: a closed attempt is never rewritten; a lease generation never changes.
CREATE FUNCTION tk_attempt_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.ended_at IS NOT NULL THEN
        RAISE EXCEPTION 'attempt % is closed', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'attempts_closed_is_closed';
    END IF;
    IF NEW.lease_generation < OLD.lease_generation THEN
        RAISE EXCEPTION 'lease generation of attempt % would fall', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'lease_generation_monotonic';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER attempts_guard BEFORE UPDATE ON attempts FOR EACH ROW EXECUTE FUNCTION tk_attempt_guard();

-- A-01: over the whole scope the lease generation of a later attempt is greater.
CREATE FUNCTION tk_attempt_generation_grows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM attempts WHERE run_id = NEW.run_id AND lease_generation >= NEW.lease_generation) THEN
        RAISE EXCEPTION 'lease generation % of run % is not the newest', NEW.lease_generation, NEW.run_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'lease_generation_monotonic';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER attempts_generation_grows BEFORE INSERT ON attempts FOR EACH ROW
    EXECUTE FUNCTION tk_attempt_generation_grows();

-- -------------------------------------------------------------------------- shared workspaces, memberships, activations

CREATE TABLE shared_workspaces (
    id               uuid PRIMARY KEY,
    uid              uuid NOT NULL REFERENCES users,
    runtime_scope_id uuid NOT NULL UNIQUE REFERENCES conversations,
    provisioner      text,
    sandbox_id       text NOT NULL,
    generation       text,
    boot_id          text,
    epoch            bigint NOT NULL DEFAULT 0 CONSTRAINT shared_workspaces_epoch_not_negative CHECK (epoch >= 0),
    created_at       timestamptz NOT NULL DEFAULT tk_now(),
    CONSTRAINT shared_workspaces_boot_has_generation CHECK (boot_id IS NULL OR generation IS NOT NULL)
);

CREATE TABLE memberships (
    id                  uuid PRIMARY KEY,
    shared_workspace_id uuid NOT NULL REFERENCES shared_workspaces,
    thread_id           uuid NOT NULL UNIQUE REFERENCES conversations,
    native_session      text,
    native_turn         bigint NOT NULL DEFAULT 0 CONSTRAINT memberships_native_turn_not_negative CHECK (native_turn >= 0),
    state               text NOT NULL DEFAULT 'idle' CONSTRAINT memberships_state_known CHECK (state IN ('idle', 'active', 'suspended', 'quarantined', 'lost')),
    fence               bigint NOT NULL DEFAULT 0 CONSTRAINT memberships_fence_not_negative CHECK (fence >= 0),
    activation_id       uuid,
    admitted_job_id     uuid REFERENCES runs,
    lost_reason         text,
    -- evidence of R-07, as of the last settlement: the exact agent process that may be continued
    settled_generation  text,
    settled_boot_id     text,
    agent_pid           bigint,
    agent_start_ticks   bigint,
    created_at          timestamptz NOT NULL DEFAULT tk_now(),
    CONSTRAINT memberships_live_has_activation CHECK ((state IN ('active', 'quarantined')) = (activation_id IS NOT NULL)),
    CONSTRAINT memberships_lost_has_reason CHECK ((state = 'lost') = (lost_reason IS NOT NULL)),
    CONSTRAINT memberships_turn_has_session CHECK (native_turn = 0 OR native_session IS NOT NULL)
);
CREATE INDEX memberships_by_workspace ON memberships (shared_workspace_id);
CREATE INDEX memberships_quarantined ON memberships (id) WHERE state = 'quarantined';

CREATE TABLE activations (
    id                 uuid PRIMARY KEY,
    membership_id      uuid NOT NULL REFERENCES memberships,
    run_id             uuid NOT NULL REFERENCES runs,
    attempt_id         uuid NOT NULL REFERENCES attempts,
    fence              bigint NOT NULL CONSTRAINT activations_fence_positive CHECK (fence > 0),
    generation         text NOT NULL,
    boot_id            text NOT NULL,
    state              text NOT NULL DEFAULT 'preparing' CONSTRAINT activations_state_known CHECK (state IN
        ('preparing', 'admitted', 'settled', 'abandoned', 'quarantined', 'not_delivered', 'lost')),
    token_hash         bytea NOT NULL CONSTRAINT activations_token_hash_size CHECK (octet_length(token_hash) = 32),
    native_session     text,
    created_at         timestamptz NOT NULL DEFAULT tk_now(),
    admitted_at        timestamptz,
    settled_at         timestamptz,
    ended_at           timestamptz,
    -- of the settlement: what the supervisor's receipt said
    outcome            text CONSTRAINT activations_outcome_known CHECK (outcome IN ('completed', 'failed', 'cancelled', 'suspended')),
    stop_reason        text,
    native_turn        bigint CONSTRAINT activations_native_turn_positive CHECK (native_turn > 0),
    epoch              bigint CONSTRAINT activations_epoch_positive CHECK (epoch > 0),
    final_message      text,
    error_code         text,
    UNIQUE (membership_id, fence),
    CONSTRAINT activations_admitted_has_time CHECK (state <> 'admitted' OR admitted_at IS NOT NULL),
    CONSTRAINT activations_settled_has_time CHECK ((state = 'settled') = (settled_at IS NOT NULL)),
    CONSTRAINT activations_settled_is_whole CHECK (state <> 'settled' OR (outcome IS NOT NULL AND native_turn IS NOT NULL AND epoch IS NOT NULL)),
    CONSTRAINT activations_abandoned_never_admitted CHECK (state <> 'abandoned' OR admitted_at IS NULL),
    CONSTRAINT activations_end_is_final CHECK ((ended_at IS NULL) = (state IN ('preparing', 'admitted', 'quarantined')))
);
CREATE UNIQUE INDEX activations_one_live_per_membership ON activations (membership_id)
    WHERE state IN ('preparing', 'admitted', 'quarantined');
CREATE INDEX activations_by_run ON activations (run_id);
CREATE INDEX activations_by_attempt ON activations (attempt_id);
ALTER TABLE memberships ADD FOREIGN KEY (activation_id) REFERENCES activations DEFERRABLE INITIALLY DEFERRED;

-- A membership fence, a native turn and an epoch never fall; LOST is final (R-05); a shared workspace keeps its identity.
CREATE FUNCTION tk_membership_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.fence < OLD.fence OR NEW.native_turn < OLD.native_turn THEN
        RAISE EXCEPTION 'fence or native turn of membership % would fall', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'membership_monotonic';
    END IF;
    IF OLD.state = 'lost' AND NEW.state <> 'lost' THEN
        RAISE EXCEPTION 'membership % is lost for good', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'membership_lost_is_final';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER memberships_guard BEFORE UPDATE ON memberships FOR EACH ROW EXECUTE FUNCTION tk_membership_guard();

CREATE FUNCTION tk_workspace_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.epoch < OLD.epoch THEN
        RAISE EXCEPTION 'epoch of shared workspace % would fall', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'workspace_epoch_monotonic';
    END IF;
    IF (NEW.uid, NEW.runtime_scope_id, NEW.sandbox_id) IS DISTINCT FROM (OLD.uid, OLD.runtime_scope_id, OLD.sandbox_id)
       OR (OLD.provisioner IS NOT NULL AND NEW.provisioner IS DISTINCT FROM OLD.provisioner) THEN
        RAISE EXCEPTION 'shared workspace % keeps its owner, scope, sandbox id and provisioner', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'workspace_identity';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER shared_workspaces_guard BEFORE UPDATE ON shared_workspaces FOR EACH ROW EXECUTE FUNCTION tk_workspace_guard();

CREATE TABLE snapshots (
    shared_workspace_id uuid NOT NULL REFERENCES shared_workspaces,
    epoch               bigint NOT NULL CONSTRAINT snapshots_epoch_positive CHECK (epoch > 0),
    run_id              uuid NOT NULL REFERENCES runs,
    tree_id             text CONSTRAINT snapshots_tree_id_form CHECK (tree_id ~ '^[0-9a-f]{40,64}$'),
    unavailable_why     text,
    changes             jsonb,
    created_at          timestamptz NOT NULL DEFAULT tk_now(),
    PRIMARY KEY (shared_workspace_id, epoch),
    CONSTRAINT snapshots_tree_or_why CHECK ((tree_id IS NULL) <> (unavailable_why IS NULL))
);
CREATE INDEX snapshots_by_run ON snapshots (run_id);

CREATE TABLE inputs (
    id            uuid PRIMARY KEY,
    thread_id     uuid NOT NULL REFERENCES conversations,
    run_id        uuid NOT NULL REFERENCES runs,
    kind          text NOT NULL CONSTRAINT inputs_kind_known CHECK (kind IN ('permission', 'question')),
    asked_by      text NOT NULL,
    question      text NOT NULL,
    options       jsonb NOT NULL DEFAULT '[]',
    state         text NOT NULL DEFAULT 'open' CONSTRAINT inputs_state_known CHECK (state IN ('open', 'answered', 'delivered', 'cancelled', 'expired')),
    answer        jsonb,
    answered_by   uuid REFERENCES users,
    resume_run_id uuid REFERENCES runs,
    deadline      timestamptz NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT tk_now(),
    answered_at   timestamptz,
    ended_at      timestamptz,
    CONSTRAINT inputs_answered_has_answer CHECK (state NOT IN ('answered', 'delivered') OR (answer IS NOT NULL AND answered_at IS NOT NULL)),
    CONSTRAINT inputs_end_is_final CHECK ((ended_at IS NOT NULL) = (state IN ('delivered', 'cancelled', 'expired')))
);
CREATE INDEX inputs_open ON inputs (thread_id) WHERE state IN ('open', 'answered');
CREATE INDEX inputs_by_deadline ON inputs (deadline) WHERE state = 'open';

-- --------------------------------------------------------------------------------------------- hosts, events, small things

CREATE TABLE hosts (
    name              text PRIMARY KEY CONSTRAINT hosts_name_form CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$'),
    incarnation       uuid NOT NULL,
    version           text NOT NULL,
    capacity          integer NOT NULL CONSTRAINT hosts_capacity_positive CHECK (capacity > 0),
    labels            jsonb NOT NULL DEFAULT '{}' CONSTRAINT hosts_labels_is_object CHECK (jsonb_typeof(labels) = 'object'),
    provisioner       text NOT NULL,
    state             text NOT NULL CONSTRAINT hosts_state_known CHECK (state IN ('ready', 'backing_off', 'draining', 'gone')),
    launch_error      text,
    -- a late heartbeat of one of these must not take the host back (the newest 20 are kept)
    earlier_incarnations uuid[] NOT NULL DEFAULT '{}',
    started_at        timestamptz NOT NULL DEFAULT tk_now(),
    last_heartbeat_at timestamptz NOT NULL DEFAULT tk_now(),
    CONSTRAINT hosts_backing_off_has_error CHECK (state <> 'backing_off' OR launch_error IS NOT NULL)
);

CREATE TABLE event_counters (
    thread_id      uuid PRIMARY KEY REFERENCES conversations,
    last_seq       bigint NOT NULL DEFAULT 0 CONSTRAINT event_counters_last_seq_not_negative CHECK (last_seq >= 0),
    dropped_before bigint NOT NULL DEFAULT 0 CONSTRAINT event_counters_dropped_before_not_negative CHECK (dropped_before >= 0)
);

CREATE TABLE events (
    thread_id      uuid NOT NULL REFERENCES conversations,
    seq            bigint NOT NULL CONSTRAINT events_seq_positive CHECK (seq > 0),
    run_id         uuid NOT NULL REFERENCES runs,
    attempt_id     uuid REFERENCES attempts,
    stream_no      bigint CONSTRAINT events_stream_no_positive CHECK (stream_no > 0),
    kind           text NOT NULL,
    data           jsonb NOT NULL,
    original_bytes bigint CONSTRAINT events_original_bytes_positive CHECK (original_bytes > 0),
    created_at     timestamptz NOT NULL DEFAULT tk_now(),
    PRIMARY KEY (thread_id, seq),
    CONSTRAINT events_stream_no_has_attempt CHECK ((stream_no IS NULL) OR (attempt_id IS NOT NULL))
);
CREATE UNIQUE INDEX events_stream_no ON events (attempt_id, stream_no) WHERE stream_no IS NOT NULL;
CREATE INDEX events_by_run ON events (run_id, seq);
-- A-03: one terminal event per run
CREATE UNIQUE INDEX events_one_end_per_run ON events (run_id) WHERE kind = 'end';

-- A-03: the terminal event is the last of its run. A late batch of the same run is refused by the database itself.
CREATE FUNCTION tk_event_after_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM events WHERE run_id = NEW.run_id AND kind = 'end' AND seq < NEW.seq) THEN
        RAISE EXCEPTION 'run % has ended: no event follows its end', NEW.run_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'events_end_is_last';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER events_end_is_last BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION tk_event_after_end();

CREATE TABLE idempotency_keys (
    uid         uuid NOT NULL REFERENCES users,
    route       text NOT NULL,
    key         text NOT NULL CONSTRAINT idempotency_keys_key_length CHECK (octet_length(key) BETWEEN 1 AND 255),
    body_digest bytea NOT NULL CONSTRAINT idempotency_keys_body_digest_size CHECK (octet_length(body_digest) = 32),
    status      integer NOT NULL,
    answer      jsonb NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT tk_now(),
    PRIMARY KEY (uid, route, key)
);
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);

-- The identity of the database that every claim is checked against (protocol 7, after a fail-over).
CREATE TABLE cluster (
    singleton         boolean PRIMARY KEY DEFAULT true CONSTRAINT cluster_is_one_row CHECK (singleton),
    system_identifier text NOT NULL,
    timeline          bigint NOT NULL,
    stored_at         timestamptz NOT NULL DEFAULT tk_now()
);

-- Settings that must outlive a process and be the same for every replica, such as the public half of the signing key.
CREATE TABLE signing_keys (
    kid        text PRIMARY KEY,
    public_pem text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT tk_now()
);
