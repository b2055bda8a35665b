// One conversation, live. The server renders every turn; this script shows what happens between two renderings:
// text as it comes, tool calls, states. When a turn ends (or something is not clear) the page is fetched again and the
// parts that changed are exchanged, so that there is one rendering of a turn and not two.

const root = document.querySelector("[data-conversation]");
const texts = JSON.parse(root.dataset.texts);
const statuses = JSON.parse(root.dataset.statuses);
const turns = document.getElementById("turns");
const announce = root.querySelector("[data-announce]");
const LIVE_CHARS_MAX = 200_000;

const EARLY_EVENTS_MAX = 1000;

// Events of runs whose card is not here yet, in their order: the stream may be faster than the page that brings the card.
const early = new Map();
let refreshing = null;
let again = false;

function turnOf(run) {
  return document.getElementById(`turn-${run}`);
}

function connection(state) {
  document.querySelector("[data-connection]").textContent = texts[state];
}

// Keep the newest line in sight, unless the reader has scrolled away from it.
function follow(change) {
  const near = window.innerHeight + window.scrollY > document.body.scrollHeight - 160;
  change();
  if (near) window.scrollTo({ top: document.body.scrollHeight });
}

// Fetch the page and exchange what it says: turns that are not final here, the head, the composer where its state changed.
async function refresh() {
  if (refreshing) {
    again = true;
    return refreshing;
  }
  refreshing = (async () => {
    do {
      again = false;
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.redirected || !answer.ok) return location.reload();
      exchange(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } while (again);
  })();
  try {
    await refreshing;
  } catch {
    setTimeout(refresh, 2000); // no connection: what ended meanwhile must not be missed
  } finally {
    refreshing = null;
  }
}

function exchange(page) {
  // What the fresh page shows holds all events up to this one; a state that came by a later one is newer.
  const seq = Number(page.querySelector("[data-conversation]").dataset.seq);
  follow(() => {
    for (const fresh of page.querySelectorAll("article.turn")) {
      const old = document.getElementById(fresh.id);
      if (!old) {
        turns.querySelector("[data-empty]")?.remove();
        turns.append(fresh);
        catchUp(fresh, seq);
      } else if (!("final" in old.dataset) && ("final" in fresh.dataset)) {
        old.replaceWith(fresh);
      } else if (!("final" in old.dataset) && seq >= Number(old.dataset.seq ?? 0)) {
        setState(old, fresh.dataset.status);
      }
    }
    const head = page.getElementById("head");
    const state = document.querySelector("[data-connection]").textContent;
    document.getElementById("head").replaceWith(head);
    document.querySelector("[data-connection]").textContent = state;
    const composer = page.getElementById("composer");
    // A half-written message stays: the composer is exchanged only where it appears or disappears.
    if (!composer.querySelector("[data-send]") !== !document.querySelector("#composer [data-send]")) {
      document.getElementById("composer").replaceWith(composer);
    }
  });
}

function setState(turn, status) {
  turn.dataset.status = status;
  const badge = turn.querySelector("[data-state]");
  badge.className = `badge ${status}`;
  badge.textContent = statuses[status] ?? status;
  if (status === "cancel_requested") turn.querySelector("[data-cancel] button")?.setAttribute("disabled", "");
}

// Tell a card what came before it was there; states that it shows already are passed over.
function catchUp(turn, seq) {
  const events = early.get(turn.dataset.run) ?? [];
  early.delete(turn.dataset.run);
  if ("final" in turn.dataset) return;
  for (const one of events) {
    if (one.type === "end") again = true;
    else if (one.type !== "run" || one.seq > seq) show[one.type]?.(turn, one.data, one.seq);
  }
}

function appendText(node, text) {
  if (node.textContent.length > LIVE_CHARS_MAX) node.textContent = `…${node.textContent.slice(-LIVE_CHARS_MAX / 2)}`;
  node.append(text);
}

function activity(turn, id, title, status) {
  const list = turn.querySelector("[data-activity]");
  let item = id && [...list.children].find((one) => one.dataset.id === id);
  if (!item) {
    item = document.createElement("li");
    if (id) item.dataset.id = id;
    list.append(item);
  }
  if (title) item.textContent = title;
  if (status) item.dataset.status = status;
}

const show = {
  text: (turn, data) => appendText(turn.querySelector("[data-live]"), data.text ?? ""),
  thought(turn, data) {
    const thoughts = turn.querySelector("[data-thoughts]");
    thoughts.hidden = false;
    appendText(thoughts.querySelector(".plain"), data.text ?? "");
  },
  tool_call: (turn, data) => activity(turn, data.id, data.title || data.kind, data.status),
  tool_update: (turn, data) => activity(turn, data.id, data.title, data.status),
  plan(turn, data) {
    (data.entries ?? []).forEach((entry, n) => activity(turn, `plan-${n}`, entry.content, entry.status));
  },
  permission: (turn, data) => activity(turn, `permission-${data.id}`, `${data.title ?? data.tool}: ${data.answer?.outcome}`),
  notice: (turn, data) => activity(turn, null, data.text),
  error(turn, data) {
    const why = [data.text ?? data.code, data.detail].filter(Boolean).join(" ");
    activity(turn, null, why, data.code === "cancelled" ? undefined : "failed");
  },
  run(turn, data, seq) {
    turn.dataset.seq = seq;
    setState(turn, data.status);
  },
};

// The conversation itself moved: no turn tells of it, and it may come after the end of the turn that it is about.
async function onConversation(event) {
  await refresh(); // said to a screen reader when the page says it too
  announce.textContent = JSON.parse(event.data).text ?? "";
}

function onEvent(event) {
  if (event.data === undefined) return; // the browser's own "error": the kind of that name has data
  const data = JSON.parse(event.data);
  const turn = turnOf(data.run_id);
  if (!turn) {
    // A message from another window, or of ours before its card came. Asked for once: a run that is not on this page stays
    // unknown.
    const events = early.get(data.run_id);
    if (!events) {
      early.set(data.run_id, []);
      refresh();
    }
    const kept = early.get(data.run_id);
    if (kept.length < EARLY_EVENTS_MAX) kept.push({ type: event.type, data, seq: Number(event.lastEventId) });
    return;
  }
  if ("final" in turn.dataset) return;
  if (event.type === "end") {
    announce.textContent = statuses[data.status] ?? "";
    refresh();
  } else {
    follow(() => show[event.type]?.(turn, data, Number(event.lastEventId)));
  }
}

function listen() {
  const source = new EventSource(`/v1/conversations/${root.dataset.conversation}/events?after=${root.dataset.after}`);
  connection("connecting");
  source.onopen = () => connection("live");
  source.onerror = (event) => {
    if (event.data !== undefined) return;
    connection("reconnecting");
    if (source.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 5000); // refused, not cut
  };
  source.addEventListener("snapshot", (event) => {
    if (JSON.parse(event.data).restart) location.reload();
  });
  source.addEventListener("gap", refresh);
  source.addEventListener("conversation", onConversation);
  for (const kind of [...Object.keys(show), "message", "end"]) source.addEventListener(kind, onEvent);
  window.addEventListener("pagehide", () => source.close());
}

async function send(form) {
  const button = form.querySelector("button.main");
  const problem = form.querySelector("[data-problem]");
  const label = button.textContent;
  button.disabled = true;
  button.textContent = texts.sending;
  problem.hidden = true;
  try {
    const answer = await fetch(form.action, {
      method: "POST", body: new URLSearchParams(new FormData(form)), headers: { Accept: "application/json" },
    });
    const data = await answer.json();
    if (answer.ok) {
      form.elements.text.value = "";
      form.elements.key.value = data.next_key;
      await refresh();
    } else {
      problem.textContent = [data.title, data.detail].filter(Boolean).join(" · ");
      problem.hidden = false;
    }
  } catch {
    problem.textContent = texts.reconnecting; // the same key is sent again, so nothing is said twice
    problem.hidden = false;
  } finally {
    button.disabled = false;
    button.textContent = label;
  }
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.matches("[data-send]")) {
    event.preventDefault();
    send(form);
  } else if (form.matches("[data-cancel]")) {
    event.preventDefault();
    form.querySelector("button").disabled = true;
    fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)), headers: { Accept: "application/json" } })
      .finally(refresh);
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.id === "text") {
    event.preventDefault();
    event.target.form.requestSubmit();
  }
});

window.scrollTo({ top: document.body.scrollHeight });
listen();
