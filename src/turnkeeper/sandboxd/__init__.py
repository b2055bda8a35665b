"""The sandbox manager: pid 1 of a sandbox, owner of every agent process, its prompts, receipts and death.

boot.py        start as pid 1, first answers, the rest imported behind them
http.py        a small HTTP/1.1 server; routes.py says what it serves
supervisor.py  memberships, fences, the barrier, one turn from take to settlement
opening.py     the native session of a turn: continued, reloaded or new; turning.py its end
agent.py       one agent process that speaks ACP; rpc.py, framing.py and largeline.py its lines
turn.py        one turn as it is recorded; updates.py, permissions.py and eventlog.py what becomes events
processes.py   keepers, reaping and stop-rescan-kill; keeper.py is the process itself
deadman.py     the switch that kills a turn whose lease is not fed
journal.py     what was begun and settled, on disk
snapshot.py    the walk of a Workdir; walker.py is the process itself
"""
