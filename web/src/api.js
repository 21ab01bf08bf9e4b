// Where the page gets its data: from the server, or from inside an exported file.

const embedded = document.getElementById("retinue-export");
export const offline = embedded !== null;
let exported = null;

async function loadExport() {
  if (exported) return exported;
  const bytes = Uint8Array.from(atob(embedded.textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  exported = await new Response(stream).json();
  return exported;
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch {
    throw new Error("The server does not answer; is `retinue web` still running?");
  }
  const body = await response.json().catch(() => ({ error: response.statusText }));
  if (!response.ok) throw new Error(body.error ?? response.statusText);
  return body;
}

export async function listRuns() {
  if (!offline) return request("api/runs?limit=500");
  const { run, project } = await loadExport();
  return { project, read_only: true, runs: [run] };
}

export async function agentDetails(run, agent, after = 0) {
  if (!offline) return request(`api/runs/${run}/agents/${agent}?after=${after}`);
  const found = (await loadExport()).agents[agent];
  if (!found) throw new Error("The export has no details of this agent.");
  return { ...found, events: found.events.filter((event) => event.seq > after) };
}

export async function diffOf(run, agent) {
  if (!offline) return request(`api/runs/${run}/diff${agent ? `?agent=${agent}` : ""}`);
  const { diff } = await loadExport();
  return agent ? diff.filter((change) => change.agent_id === agent) : diff;
}

export function statistics(by) {
  return request(`api/stats?by=${by}`);
}

export function command(path, body = {}) {
  return request(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
}

// Calls `on.changes(list)`, `on.live(bool)`, `on.state("open" | "lost")`, `on.problem(text)`.
// The browser reconnects with the number of the last event, so nothing is missed or sent twice.
export function follow(run, on) {
  if (offline) {
    loadExport().then((data) => {
      on.state("open");
      on.changes(data.changes);
      on.live(false);
    });
    return () => {};
  }
  let source;
  let last = 0;
  let timer = 0;
  const open = () => {
    source = new EventSource(`api/runs/${run}/events?after=${last}`);
    source.onopen = () => on.state("open");
    source.onmessage = (message) => {
      last = Number(message.lastEventId);
      on.changes(JSON.parse(message.data));
    };
    source.addEventListener("live", (message) => on.live(JSON.parse(message.data).live));
    source.addEventListener("text", (message) => on.text?.(JSON.parse(message.data)));
    source.addEventListener("problem", (message) => {
      source.close();
      on.problem(JSON.parse(message.data).error);
    });
    source.onerror = async () => {
      on.state("lost");
      if (source.readyState !== EventSource.CLOSED) return;
      // An answer that is no stream says why; a server that is gone may come back.
      try {
        await request(`api/runs/${run}`);
      } catch (error) {
        on.problem(error.message);
      }
      timer = setTimeout(open, 2000);
    };
  };
  open();
  return () => {
    clearTimeout(timer);
    source.close();
  };
}
