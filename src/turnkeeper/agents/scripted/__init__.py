"""The scripted agent: an ACP agent without a model, for demos, drills and tests.

``python -m turnkeeper.agents.scripted`` speaks the Agent Client Protocol (version 1) as JSON lines on stdin and stdout.
It imports nothing but the standard library, and little of that, because a cold sandbox pays for every import.

Each line of a prompt is a directive, or plain text. What it says goes out as ``agent_message_chunk`` updates; after the
first of a turn, each begins on a new line. Paths are relative to the session's cwd. Directives:

``TEXT``               plain text is answered with ``turn 3, remembering 2 earlier turns: TEXT`` (always "turns"). The turn
                       number counts every prompt of the session; *remembered* are the earlier turns that were answered,
                       so that a turn whose process was killed shows as a difference.
``/say TEXT``          says TEXT in one chunk.
``/think TEXT``        sends TEXT as an ``agent_thought_chunk``; nothing is said.
``/tokens N [SECONDS]``  says ``t1 t2 … tN `` in N chunks, with a pause between them.
``/ticks N SECONDS``   says N chunks, each the time of its sending as unix nanoseconds, with a pause between them.
``/sleep SECONDS``     waits (a cancel ends it) and says ``slept SECONDS s``.
``/write PATH TEXT``   writes TEXT and a newline (parent directories are made): a tool call of kind *edit* whose completion
                       shows the diff; says ``wrote PATH``.
``/read PATH``         a tool call of kind *read* whose completion carries the text; says ``read PATH``.
``/run COMMAND``       a tool call of kind *execute*: runs COMMAND by ``/bin/sh`` in a session of its own, its output (at most
                       the last 64 KiB) in the completion, *failed* when the exit status is not 0; says
                       ``ran COMMAND: exit N``. A cancel kills its process group.
``/background COMMAND``  leaves COMMAND behind as a double-forked process in a session of its own, with no inherited
                       descriptor; says ``background PID``.
``/ask QUESTION | OPTION | …``  asks by ``session/request_permission`` and says ``answered: OPTION`` or
                       ``answered: cancelled``. An option may name its kind, as in ``Always=allow_always``; otherwise the
                       first one allows once and the others reject once; without options they are Allow and Reject. It
                       waits for the answer also after a cancel, as real agents do.
``/spawn AGENT TEXT``  says ``spawn is not available``.
``/late TEXT``         sends TEXT as a chunk right after the response to this prompt.
``/fail MESSAGE``      answers the prompt with the JSON-RPC error -32603 MESSAGE.
``/fail-bytes HEX``    the same, the message being these bytes as they are.
``/exit CODE``         exits at once with CODE.
``/crash``             ends itself by SIGSEGV (no core file).
``/hang``              never answers this prompt; a prompt that holds it ignores cancel from its begin.
``/fault FAULT``       carries out a fault (below) in mid-turn.
``/bytes HEX [| HEX]`` a chunk whose JSON text holds exactly these bytes, escapes and broken UTF-8 included; groups
                       separated by ``|`` go out in writes of their own, 50 ms apart.
``/raw HEX``           these bytes on stdout, outside of any message.
``/line SIZE``         one message of exactly SIZE bytes, its newline not counted; its text is 0123456789 repeated.
``/stderr N``          N bytes on stderr, in lines of 80; says nothing.

A directive that is unknown or used wrongly is answered by a sentence that begins with ``unknown directive`` or ``usage:``.

Sessions lie in ``$HOME/.scripted-agent/sessions/<id>.json``, replaced atomically and fsynced before a prompt's work begins
and before it is answered. ``session/load`` replays them as updates, ``session/resume`` does not; both refuse an unknown id
(-32002) and another cwd than the session's (-32602). ``session/close`` cancels what runs and keeps the file. A second prompt
while one runs in the same session is refused (-32600); sessions run side by side. The agent exits 0 when stdin ends.

Environment:

``SCRIPTED_AGENT_LEDGER=FILE``   every prompt that is received is appended to FILE (``~`` is expanded) and fsynced before
    anything else is done with it: one JSON line with t (unix ns), session, turn, pid, text. ``turn`` is null for a session
    that this process does not know. A ledger that cannot be written fails the prompt.
``SCRIPTED_AGENT_FAULT=STAGE:FAULT[:N],…``   STAGE is initialize, new, load, resume, prompt, permission, cancel or close;
    FAULT is exit0 to exit255, segv, close-stdout (closes it, and stays alive until killed), hang (never answers) or
    delay=SECONDS. It happens when the request arrives (prompt: after the ledger; permission: when the agent's request
    is out), every time or, with N, the Nth time only. A line on stderr says so.
``SCRIPTED_AGENT_STDERR=TEXT``   written to stderr at start.
``SCRIPTED_AGENT_NO_LOAD``, ``…_NO_RESUME``, ``…_NO_CLOSE``   any value withholds the capability and the method.
``SCRIPTED_AGENT_DEAF``   any value: SIGTERM, SIGINT, SIGHUP, the end of stdin and a closed stdout are ignored.
"""
