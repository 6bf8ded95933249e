// The page around the episode: the list, its filters, the keys, and the card of a token.

const episodes = index.episodes.map((summary, number) => ({
  ...summary,
  number,
  haystack: `${summary.question} ${summary.question_id} ${summary.answers.join(" ")}`.toLowerCase(),
}));
let shown = []; // episodes that pass the filters, in order
let current = null; // the summary of the episode on the page
let trace = null;

function render() {
  trace = JSON.parse($(`episode-${current.number}`).textContent);
  const siblings = episodes.filter((episode) => episode.question_id === current.question_id).length;
  $("episode").replaceChildren(...episodeNodes(trace, siblings));
  $("legend").hidden = !trace.turns.some((turn) => turn.advantages);
}

// ---------------------------------------------------------------- the list

function listItem(episode) {
  const reward = el("span", {class: `reward ${episode.reward > 0 ? "good" : ""}`}, `reward ${plain(episode.reward)}`);
  const rest = [episode.stop_reason, plural(episode.turns, "turn"), episode.context];
  if (episode.step !== null) rest.push(`step ${episode.step}`);
  const button = el("button", {type: "button", tabindex: "-1", "data-number": episode.number},
    el("span", {class: "question"}, episode.question), el("span", {class: "meta"}, reward, ` ${rest.join(" · ")}`));
  return el("li", {}, button);
}

function fillSelect(id, key) {
  const values = [...new Set(episodes.map((episode) => episode[key]))].filter((value) => value !== null);
  values.sort((a, b) => (typeof a === "number" ? a - b : a < b ? -1 : 1));
  $(id).replaceChildren(el("option", {value: ""}, "any"), ...values.map((value) => el("option", {value}, String(value))));
  $(id).closest("label").hidden = values.length < 2;
}

function passes(episode) {
  const [low, high] = [$("filter-low").value, $("filter-high").value];
  const chosen = (id, key) => $(id).value === "" || String(episode[key]) === $(id).value;
  return episode.haystack.includes($("filter-text").value.trim().toLowerCase())
    && chosen("filter-stop", "stop_reason") && chosen("filter-context", "context") && chosen("filter-step", "step")
    && (low === "" || (episode.reward !== null && episode.reward >= Number(low)))
    && (high === "" || (episode.reward !== null && episode.reward <= Number(high)));
}

function applyFilters() {
  shown = episodes.filter(passes);
  const key = $("sort").value;
  const sign = key === "total_tokens" ? -1 : 1;
  if (key !== "file") shown.sort((a, b) => (a[key] === null) - (b[key] === null) || sign * (a[key] - b[key]));
  $("list").replaceChildren(...shown.map((episode) => (episode.item ??= listItem(episode))));
  $("count").textContent = shown.length === episodes.length ? plural(shown.length, "episode")
    : `${count(shown.length)} of ${plural(episodes.length, "episode")}`;
  if (shown.length && !shown.includes(current)) select(shown[0]);
  else mark();
}

function mark() {
  for (const old of $("list").querySelectorAll("[aria-current]")) {
    old.removeAttribute("aria-current");
    old.tabIndex = -1;
  }
  const at = shown.indexOf(current);
  $("position").textContent = at < 0 ? "" : `${count(at + 1)} of ${count(shown.length)}`;
  $("previous").disabled = at <= 0;
  $("next").disabled = at < 0 || at === shown.length - 1;
  if (at < 0) return;
  const button = current.item.firstChild;
  button.setAttribute("aria-current", "true");
  button.tabIndex = 0;
  // scrollIntoView would also move the place that Tab starts from, past the link that skips to the episode.
  const list = $("list").getBoundingClientRect(), row = button.getBoundingClientRect();
  $("list").scrollTop += Math.min(0, row.top - list.top) + Math.max(0, row.bottom - list.bottom);
}

function select(episode) {
  current = episode;
  hideTip();
  render();
  mark();
  scrollTo(0, 0);
  // In a notebook's frame the address is not ours to change.
  if (location.protocol !== "about:") history.replaceState(null, "", `#${episode.number + 1}`);
}

function step(offset) {
  const inList = $("list").contains(document.activeElement);
  const target = shown[shown.indexOf(current) + offset];
  if (!target) return;
  select(target);
  (inList ? current.item.firstChild : $("episode")).focus({preventScroll: !inList});
}

function showList(open) {
  hideTip();
  document.body.classList.toggle("list-open", open);
  $("list-toggle").setAttribute("aria-expanded", String(open));
}

// ---------------------------------------------------------------- a token's card

function showTip(span) {
  const turn = trace.turns[Number(span.dataset.turn)];
  const at = Number(span.dataset.token);
  const [total, outcome] = [turn.advantages[at], trace.outcome_advantage];
  const rows = outcome === null ? [["total", total]]
    : [["outcome", outcome], ["memory", total - outcome], ["total", total]];
  const visible = turn.tokens[at].replaceAll("\n", "↵").replaceAll(" ", "␣") || "(part of a character)";
  const tip = $("tip");
  const place = ` token ${at + 1} of ${turn.tokens.length}, turn ${Number(span.dataset.turn) + 1}`;
  tip.replaceChildren(
    el("p", {}, el("code", {}, visible), el("span", {class: "dim"}, place)),
    el("table", {}, rows.map(([name, value]) =>
      el("tr", {class: name}, el("th", {scope: "row"}, name), numberCell(signed(value, 3))))));
  tip.hidden = false;
  const box = span.getClientRects()[0] || span.getBoundingClientRect();
  const left = Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
  const under = box.bottom + 6 + tip.offsetHeight < innerHeight;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${under ? box.bottom + 6 : box.top - tip.offsetHeight - 6}px`;
}

function hideTip() {
  $("tip").hidden = true;
}

function walkTokens(event, group) {
  const tokens = [...group.querySelectorAll(".tok")];
  const at = tokens.indexOf(event.target);
  const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tokens.length - 1}[event.key];
  if (to === undefined || !tokens[to]) return;
  event.preventDefault();
  tokens[to].focus();
}

// ---------------------------------------------------------------- events

function goToTurn(number) {
  const title = $(`turn-${number}-title`);
  if (!title) return;
  $(`turn-${number}`).scrollIntoView();
  title.focus({preventScroll: true});
}

function stepTurn(offset) {
  const limit = document.querySelector(".toolbar").getBoundingClientRect().bottom + 8;
  const tops = trace.turns.map((_, number) => Math.round($(`turn-${number}`).getBoundingClientRect().top - limit));
  const focused = document.activeElement.closest(".turn");
  const at = focused ? Number(focused.id.slice(5)) : tops.filter((top) => top <= 0).length - 1;
  goToTurn(Math.max(0, Math.min(tops.length - 1, at + offset)));
}

const keys = {
  j: () => step(1),
  k: () => step(-1),
  n: () => stepTurn(1),
  p: () => stepTurn(-1),
  "/": () => { showList(true); $("filter-text").focus(); },
  "?": () => $("help").showModal(),
  Escape: () => showList(false),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (event.target.closest("input, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const group = event.target.closest(".tokens[tabindex]");
  if (group) walkTokens(event, group);
  const inList = $("list").contains(event.target) && {ArrowDown: 1, ArrowUp: -1}[event.key];
  if (inList) { event.preventDefault(); step(inList); }
  if (Object.hasOwn(keys, event.key)) { event.preventDefault(); keys[event.key](); }
});

const token = (event) => event.target.closest?.(".tok");
for (const enter of ["pointerover", "focusin"]) {
  $("episode").addEventListener(enter, (event) => (token(event) ? showTip(token(event)) : hideTip()));
}
$("episode").addEventListener("pointerleave", hideTip);
$("episode").addEventListener("focusout", hideTip);
$("episode").addEventListener("click", (event) => {
  const go = event.target.closest("[data-go]");
  if (go) goToTurn(Number(go.dataset.go));
  if (event.target.id === "siblings") {
    $("filters").reset();
    $("filter-text").value = current.question_id;
    applyFilters();
    showList(true);
  }
});
document.addEventListener("scroll", () => {
  const focused = document.activeElement.closest(".tok"); // walking the tokens scrolls the page: their card follows
  if (focused && !$("tip").hidden) showTip(focused);
  else hideTip();
}, {passive: true});
$("list").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  select(episodes[Number(button.dataset.number)]);
  showList(false);
});
$("list-toggle").addEventListener("click", () => showList(!document.body.classList.contains("list-open")));
$("previous").addEventListener("click", () => step(-1));
$("next").addEventListener("click", () => step(1));
$("help-open").addEventListener("click", () => $("help").showModal());
$("skip").addEventListener("click", (event) => { event.preventDefault(); $("episode").focus(); });
$("filters").addEventListener("input", applyFilters);
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("filters").addEventListener("reset", () => setTimeout(applyFilters));

document.body.classList.toggle("single", episodes.length === 1);
$("scale-low").textContent = signed(-index.scale, 1);
$("scale-high").textContent = signed(index.scale, 1);
fillSelect("filter-stop", "stop_reason");
fillSelect("filter-context", "context");
fillSelect("filter-step", "step");
current = episodes[Number(location.hash.slice(1)) - 1] || null;
applyFilters();
if (current) select(current);
