"""Host and worker: what claims runs and carries them out (protocol.md, sections 4, 5 and 8).

The host (`host`) starts children ahead of need (`launch`, `spares`), claims (`claims`), hands each turn to one child over
a private descriptor (`handover`) and remembers its children across restarts (`records`).

A child (`child`) carries out one turn and exits. Its main thread goes through the steps (`turn`, `steps`, `follow`,
`conclude`); the threads beside it set flags (`flags`) and shut sockets down, and never act by themselves: renewals
(`heartbeat`), the dead-man's feed (`feed`), the wait for a cancel (`signals`), the event pump (`pump`), and the watchdog
(`watchdog`), which enforces every deadline and is blocked by no HTTP call.
"""
