// The formula of predict.py, advise.py and sim/network.py, so that a page can predict again. Seconds and bytes.
const Planner = (() => {
  "use strict";

  // As sim.network.Network.seconds has it, for one kind of cable between nodes and one inside.
  function network(call, net) {
    const nodes = net.ranks / net.nodeSize;
    const ranks = { world: net.ranks, node: net.nodeSize, leaders: nodes }[call.among];
    if (ranks === 1) return 0;
    const shared = call.among === "world" && nodes > 1 ? net.nodeSize : 1;
    let rounds = ranks - 1, passing = (ranks - 1) * call.size;
    if (call.kind === "broadcast" || call.senders === 1) {
      rounds = Math.ceil(Math.log2(ranks));
      passing = rounds * call.size;
    } else if (call.kind === "sum") {
      rounds = 2 * (ranks - 1);
      passing = (2 * (ranks - 1) / ranks) * call.size;
    } else if (call.kind === "deal" || call.senders) {
      passing = shared * (ranks - shared) * call.size * (call.kind === "deal" ? 1 / ranks : 1);
    }
    const cable = call.among === "node" || nodes === 1 ? net.inside : net.cable;
    return rounds * cable.latency + passing * cable.perByte;
  }

  function talkOver(link, host) {
    const headers = link.measured ? 0 : link.headers;
    const cable = (megabits, milliseconds) => ({
      latency: milliseconds / 1e3, perByte: megabits === null ? 0 : 8 * (1 + headers) / (1e6 * megabits),
    });
    const net = {
      ranks: link.workers, nodeSize: link.node_size, cable: cable(link.bandwidth, link.latency),
      inside: cable(link.inside_bandwidth, link.inside_latency),
    };
    const costOf = (asked) => asked.kind === "sum" ? (asked.half ? host.half : host.sum) : host.gather;
    const own = (asked) => {
      const cost = costOf(asked), cable = { latency: cost.latency, perByte: cost.per_byte };
      return network(asked, { ...net, cable, inside: cable });
    };
    const withHost = (cable, cost) =>
      ({ latency: cable.latency + cost.latency, perByte: Math.max(cable.perByte, cost.per_byte) });
    const line = (asked) => {
      if (link.measured) return network(asked, net);
      const cost = costOf(asked);
      return network(asked, { ...net, cable: withHost(net.cable, cost), inside: withHost(net.inside, cost) });
    };
    return { line, host: own, busy: host.busy };
  }

  const shape = (r) => JSON.stringify([r.selecting.length,
    r.jobs.map((j) => [j.bucket, j.behind, j.rounds.map((x) => [x.kind, x.among, x.senders, x.half])])]);

  function among(method, ranks) {
    const known = [...method.rehearsals].sort((a, b) => a.ranks - b.ranks);
    if (known.length === 1) return known[0];
    let at = known.findIndex((r, i) => i > 0 && r.ranks >= ranks);
    if (at < 0) at = known.length - 1;
    const low = known[at - 1], high = known[at];
    if (shape(low) !== shape(high)) return ranks < high.ranks ? low : high;
    const part = (ranks - low.ranks) / (high.ranks - low.ranks);
    const seconds = (a, b) => Math.max(0, a + part * (b - a));
    const size = (a, b) => a <= 0 || b <= 0 || a === b ? a
      : a * (ranks / low.ranks) ** (Math.log(b / a) / Math.log(high.ranks / low.ranks));
    return {
      selecting: low.selecting.map((s, i) => seconds(s, high.selecting[i])),
      closing: seconds(low.closing, high.closing),
      jobs: low.jobs.map((job, j) => ({ ...job, rounds: job.rounds.map((x, i) => {
        const other = high.jobs[j].rounds[i];
        return { ...x, size: size(x.size, other.size), after: seconds(x.after, other.after) };
      }) })),
    };
  }

  function stepSeconds(profile, rehearsal, talk) {
    const jobs = rehearsal.jobs, last = profile.ready.length - 1, line = [];
    let now = profile.forward, before = 0, free = 0;
    const put = (job, number) => {
      free = Math.max(now, free) + talk.line(jobs[job].rounds[number]);
      line.push([job, number, free]);
    };
    const begun = (bucket) => jobs.map((_, i) => i)
      .filter((i) => jobs[i].bucket === bucket && jobs[i].behind < 0 && jobs[i].rounds.length);
    profile.ready.forEach((ready, bucket) => {
      now += ready - before + rehearsal.selecting[bucket];
      before = ready;
      for (const job of begun(bucket)) {
        put(job, 0);
        if (talk.busy && bucket < last) now += talk.host(jobs[job].rounds[0]);
      }
    });
    now += rehearsal.closing;
    for (const job of begun(last + 1)) put(job, 0);
    while (line.length) {
      const [job, number, done] = line.shift();
      now = Math.max(now, done) + jobs[job].rounds[number].after;
      if (number + 1 < jobs[job].rounds.length) { put(job, number + 1); continue; }
      jobs.forEach((other, i) => { if (other.behind === job && other.rounds.length) put(i, 0); });
    }
    return now + profile.backward - before + profile.optimizer;
  }

  function linkBytes(asked, ranks, nodes) {
    const count = { world: ranks, node: 1, leaders: nodes }[asked.among];
    if (asked.kind === "sum") return 2 * (count - 1) * asked.size / count;
    if (asked.kind === "deal") return (count - 1) * asked.size / count;
    return (count - 1) * asked.size / (asked.senders === 1 || asked.kind === "broadcast" ? count : 1);
  }

  function predict(facts, method, link) {
    const talk = talkOver(link, facts.host), profile = facts.profile;
    const nodes = link.workers / link.node_size;
    const rehearsal = among(method, method.node_size > 1 ? nodes : link.workers);
    const rounds = rehearsal.jobs.flatMap((job) => job.rounds);
    let seconds;
    if (method.local) {
      const exchange = rounds.reduce((sum, r) => sum + talk.line(r) + r.after, rehearsal.closing);
      seconds = profile.alone + method.step + exchange / method.every;
    } else {
      seconds = stepSeconds(profile, rehearsal, talk);
    }
    const sent = rounds.reduce((sum, r) => sum + linkBytes(r, link.workers, nodes), 0);
    return {
      name: method.name, every: method.every, seconds, link_bytes: sent / method.every,
      communicating: Math.max(0, 1 - profile.alone / seconds),
    };
  }

  const ranked = (facts, link) =>
    facts.methods.map((method) => predict(facts, method, link)).sort((a, b) => a.seconds - b.seconds);

  return { predict, ranked };
})();
if (typeof module !== "undefined") module.exports = Planner;
