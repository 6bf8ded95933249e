"use strict";
// One episode as nodes. Everything a trace holds reaches the page through text nodes and plain attributes: it can never
// become markup.

const $ = (id) => document.getElementById(id);
const index = JSON.parse($("index").textContent);
const folds = {diff: true, answer: true, prompt: false}; // which kinds of <details> are open; kept between episodes

// ---------------------------------------------------------------- elements and numbers

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== ""));
  return node;
}

const plain = (value) => (value === null ? "–" : String(Math.round(value * 1000) / 1000));
const share = (value) => (value === null ? "–" : value.toFixed(2));
const count = (value) => (value === null ? "–" : value.toLocaleString("en"));
const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

function signed(value, digits = 2) {
  if (value === null) return "–";
  const text = Math.abs(value).toFixed(digits);
  if (Number(text) === 0) return text;
  return (value > 0 ? "+" : "−") + text;
}

const numberCell = (text) => el("td", {class: "number"}, text);

function bar(kind, fraction) {
  const fill = el("i");
  fill.style.setProperty("--size", `${100 * Math.max(0, Math.min(1, fraction || 0))}%`);
  return el("span", {class: `bar ${kind}`, "aria-hidden": "true"}, fill);
}

function fold(kind, summary, ...content) {
  const open = folds[kind] ? "" : null;
  const node = el("details", {class: `fold ${kind}`, open}, el("summary", {}, summary), content);
  node.addEventListener("toggle", () => (folds[kind] = node.open));
  return node;
}

// ---------------------------------------------------------------- one turn

function tokenSpans(turn, number, start, end) {
  return turn.tokens.slice(start, end).map((token, offset) => {
    const at = start + offset;
    const total = turn.advantages[at];
    const kinds = ["tok"];
    if (token.includes("\n")) kinds.push("newline");
    if (token === "") kinds.push("empty");
    if (/^<\|.*\|>$/.test(token)) kinds.push("special");
    if (total !== 0) kinds.push(total > 0 ? "pos" : "neg");
    const span = el("span", {class: kinds.join(" "), tabindex: "-1", "data-turn": number, "data-token": at}, token);
    span.style.setProperty("--strength", `${Math.round(100 * Math.min(1, Math.abs(total) / index.scale || 0))}%`);
    return span;
  });
}

// [before the memory, the memory, after it], each as nodes or text.
function turnParts(turn, number) {
  if (turn.tokens.length) {
    const [start, end] = turn.memory || [0, 0];
    const cut = turn.advantages
      ? (from, to) => tokenSpans(turn, number, from, to)
      : (from, to) => [turn.tokens.slice(from, to).join("")];
    return [cut(0, start), cut(start, end), cut(end, turn.tokens.length)];
  }
  const at = turn.memory_text ? turn.text.indexOf(turn.memory_text) : -1;
  if (at < 0) return [[], [], [turn.text]];
  const stop = at + turn.memory_text.length;
  return [[turn.text.slice(0, at)], [turn.text.slice(at, stop)], [turn.text.slice(stop)]];
}

function memoryBlock(turn, content, previous) {
  const size = turn.memory ? ` · ${plural(turn.memory[1] - turn.memory[0], "token")}` : "";
  const credit = turn.memory_reward === null ? "no memory reward"
    : `reward ${signed(turn.memory_reward, 3)} · advantage ${signed(turn.memory_advantage)}`;
  return el("div", {class: "memory"},
    el("p", {class: "label"}, el("strong", {}, "Memory"), size, el("span", {class: "right"}, credit)),
    el("div", {class: "text"}, content),
    previous ? memoryDiff(previous, turn) : null);
}

function turnText(turn, number, previous) {
  const [before, memory, after] = turnParts(turn, number);
  const some = (nodes) => nodes.some((node) => node !== "");
  const walkable = turn.tokens.length && turn.advantages;
  const label = walkable ? `Tokens of turn ${number + 1}; right and left arrow walk through them` : `Text of turn ${number + 1}`;
  return el("div", {class: "tokens", role: "group", tabindex: walkable ? "0" : null, "aria-label": label},
    some(before) ? el("div", {class: "text"}, before) : null,
    some(memory) ? memoryBlock(turn, memory, previous) : null,
    some(after) ? el("div", {class: "text"}, after) : null);
}

function probabilities(turn) {
  if (turn.p_mem === null && turn.p_baseline === null) return null;
  const row = (kind, label, value) => value === null ? null
    : [el("span", {}, label), bar(kind, value), el("span", {class: "number"}, share(value))];
  return el("div", {class: "probabilities"},
    row("full", "P(answer | history)", turn.p_baseline), row("mem", "P(answer | memory)", turn.p_mem));
}

function answerTokens(trace, turn) {
  const sides = {full: turn.answer_logps_baseline, mem: turn.answer_logps_mem};
  const scored = Object.keys(sides).filter((name) => sides[name]);
  if (!trace.answer_tokens || !scored.length) return null;
  const asked = [...trace.answer_tokens.keys()].filter((i) => !trace.answer_mask || trace.answer_mask[i]);
  const kept = turn.kept ? asked.filter((i) => turn.kept[i]).length : null;
  const chips = asked.map((i) => {
    const side = (name) => {
      const p = Math.exp(sides[name][i]);
      return el("span", {class: "side"}, bar(name, p), share(p));
    };
    const out = turn.kept && !turn.kept[i];
    return el("li", {class: out ? "out" : "kept"}, el("code", {}, trace.answer_tokens[i].trim() || "␣"),
      scored.map(side), turn.kept ? el("small", {}, out ? "not kept" : "kept") : null);
  });
  const passed = kept === null ? "" : `: ${kept} of ${asked.length} passed the threshold`;
  const note = scored.length === 2 ? "Upper bar: probability given the history. Lower bar: given the memory."
    : `Bar: probability given the ${scored[0] === "mem" ? "memory" : "history"}.`;
  return fold("answer", `Answer tokens${passed}`, el("p", {class: "dim note"}, note),
    el("ul", {class: "chips"}, chips));
}

function callText(call) {
  const given = call.arguments; // whatever JSON the model wrote
  if (given === null || typeof given !== "object") return `${call.name}(${JSON.stringify(given)})`;
  const named = Object.entries(given).map(([name, value]) => `${name}=${JSON.stringify(value)}`);
  return `${call.name}(${named.join(", ")})`;
}

function turnSection(trace, number, previous) {
  const turn = trace.turns[number];
  const facts = [`saw ${plural(turn.context_tokens, "token")}`];
  if (turn.tokens.length) facts.push(`wrote ${count(turn.tokens.length)}`);
  const calls = turn.tool_calls.map((call) => el("code", {class: "call"}, callText(call)));
  const results = turn.tool_results.map((text, i) => {
    const name = `Tool result ${i + 1} of turn ${number + 1}`;
    return el("div", {class: "result"},
      el("p", {class: "label"}, el("strong", {}, "Tool result"), " ", calls[i] || null),
      el("div", {class: "text", tabindex: "0", role: "group", "aria-label": name}, text));
  });
  return el("section", {class: "turn", id: `turn-${number}`, "aria-labelledby": `turn-${number}-title`},
    el("header", {}, el("h2", {id: `turn-${number}-title`, tabindex: "-1"}, `Turn ${number + 1}`),
      el("span", {class: "dim"}, facts.join(" · ")), probabilities(turn)),
    turnText(turn, number, previous), answerTokens(trace, turn), results, calls.slice(results.length));
}

// ---------------------------------------------------------------- memory diff

// Longest common subsequence of words; what both ends share is cut first, so that the table stays small.
function wordDiff(before, after) {
  let head = 0;
  while (head < before.length && head < after.length && before[head] === after[head]) head += 1;
  let tail = 0;
  while (tail < Math.min(before.length, after.length) - head && before.at(-1 - tail) === after.at(-1 - tail)) tail += 1;
  const old = before.slice(head, before.length - tail);
  const fresh = after.slice(head, after.length - tail);
  const width = fresh.length + 1;
  const table = new Uint32Array((old.length + 1) * width);
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = fresh.length - 1; j >= 0; j -= 1) {
      table[i * width + j] = old[i] === fresh[j] ? table[(i + 1) * width + j + 1] + 1
        : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
    }
  }
  const steps = after.slice(0, head).map((word) => ["same", word]);
  let [i, j] = [0, 0];
  while (i < old.length || j < fresh.length) {
    const dropFirst = j === fresh.length
      || (i < old.length && table[(i + 1) * width + j] >= table[i * width + j + 1]);
    if (i < old.length && j < fresh.length && old[i] === fresh[j]) {
      steps.push(["same", fresh[j]]);
      i += 1;
      j += 1;
    } else if (dropFirst) {
      steps.push(["del", old[i]]);
      i += 1;
    } else {
      steps.push(["ins", fresh[j]]);
      j += 1;
    }
  }
  return steps.concat(after.slice(after.length - tail).map((word) => ["same", word]));
}

const words = (text) => text.replace(/<\/?mem>/g, " ").split(/\s+/).filter(Boolean);

function memoryDiff(previous, turn) {
  const steps = wordDiff(words(previous.memory_text), words(turn.memory_text || ""));
  const total = (kind) => steps.filter(([step]) => step === kind).length;
  if (!total("ins") && !total("del")) {
    return el("p", {class: "dim"}, `Same words as the memory of turn ${previous.number + 1}.`);
  }
  const nodes = [];
  for (let i = 0, j; i < steps.length; i = j) {
    for (j = i; j < steps.length && steps[j][0] === steps[i][0]; j += 1);
    const text = steps.slice(i, j).map(([, word]) => word).join(" ");
    nodes.push(steps[i][0] === "same" ? text : el(steps[i][0], {}, text), " ");
  }
  const counts = `${plural(total("ins"), "word")} added, ${count(total("del"))} removed`;
  return fold("diff", `Changed since turn ${previous.number + 1}: ${counts}`, el("p", {class: "words"}, nodes));
}

// ---------------------------------------------------------------- one episode

function overview(trace) {
  const largest = Math.max(...trace.turns.map((turn) => turn.context_tokens), 1);
  const scored = trace.turns.some((turn) => turn.p_mem !== null || turn.memory_reward !== null);
  const cell = (kind, fraction, text) =>
    el("td", {}, el("span", {class: "cell"}, bar(kind, fraction), el("span", {class: "number"}, text)));
  const rows = trace.turns.map((turn, i) => el("tr", {},
    el("th", {scope: "row"},
      el("button", {type: "button", "data-go": i, "aria-label": `Go to turn ${i + 1}`}, String(i + 1))),
    cell("context", turn.context_tokens / largest, count(turn.context_tokens)),
    numberCell(turn.memory ? count(turn.memory[1] - turn.memory[0]) : "–"),
    scored ? [cell("full", turn.p_baseline, share(turn.p_baseline)), cell("mem", turn.p_mem, share(turn.p_mem)),
      numberCell(signed(turn.memory_reward, 3)), numberCell(signed(turn.memory_advantage))] : null));
  const heads = ["Turn", "Context tokens", "Memory tokens"];
  if (scored) heads.push("P history", "P memory", "Memory reward", "Memory adv.");
  return el("div", {class: "scroll", tabindex: "0", role: "group", "aria-label": "Turns at a glance"},
    el("table", {class: "overview"},
      el("thead", {}, el("tr", {}, heads.map((text) => el("th", {scope: "col"}, text)))), el("tbody", {}, rows)));
}

function facts(trace) {
  const given = [...(trace.turns.at(-1)?.text || "").matchAll(/<answer>([\s\S]*?)<\/answer>/g)].at(-1);
  const parts = Object.entries(trace.rewards).map(([name, value]) => ` · ${name} ${plain(value)}`);
  const pairs = [
    ["Reward", plain(trace.reward) + parts.join("")],
    ["Outcome advantage", signed(trace.outcome_advantage)],
    ["Gold answer", trace.answers.join("; ")],
    ["Given answer", given ? given[1].trim() : "none"],
    ["Stopped", trace.stop_reason],
    ["Context", `${trace.context} · ${count(trace.total_tokens)} tokens in all · ${count(trace.peak_tokens)} at the peak`],
  ];
  return el("dl", {class: "facts"}, pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

// Everything that the page shows of an episode; `siblings` is how many episodes answer the same question.
function episodeNodes(trace, siblings) {
  let last = null;
  const sections = trace.turns.map((turn, number) => {
    const section = turnSection(trace, number, last);
    if (turn.memory_text) last = {...turn, number};
    return section;
  });
  const prompt = trace.messages.map(({role, content}) => [el("p", {class: "label"}, el("strong", {}, String(role))),
    el("div", {class: "text"}, typeof content === "string" ? content : JSON.stringify(content))]);
  const place = `${trace.question_id}${trace.step === null ? "" : ` · step ${trace.step}`}`;
  const others = el("button", {type: "button", class: "link", id: "siblings"}, `all ${siblings} of this question`);
  return [
    el("header", {class: "head"}, el("p", {class: "dim"}, place, siblings > 1 ? [" · ", others] : null),
      el("h1", {id: "question"}, trace.question), facts(trace)),
    overview(trace),
    fold("prompt", `Prompt, ${plural(trace.prompt_tokens, "token")}`, prompt),
    ...sections,
  ];
}
