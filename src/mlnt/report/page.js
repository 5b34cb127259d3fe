// The review: shows the suspicious samples, keeps what was decided, writes the corrected labels.
// Texts from the data are only ever put into textContent, never read as HTML.
"use strict";
(() => {
  const PAGE_SIZE = 24;
  const element = (id) => document.getElementById(id);
  const data = JSON.parse(element("report-data").textContent);
  const { classes, samples } = data;
  const sampleOf = new Map(samples.map((sample) => [sample.index, sample]));

  const chosen = new Map(); // index of a sample -> class number, of those reviewed
  const undoable = []; // [index, class number before, or undefined], the latest last
  let view = []; // the samples that pass the filters, sorted
  let page = 0;
  let current = 0; // place on the page

  // --- Progress, kept in the browser -----------------------------------------------------------

  const KEY = `mlnt-review-${data.run}`;

  function load() {
    try {
      const stored = JSON.parse(localStorage.getItem(KEY) || "[]");
      chosen.clear();
      for (const [index, label] of stored) {
        if (sampleOf.has(index) && classes[label] !== undefined) chosen.set(index, label);
      }
    } catch (error) {
      warnOfStorage();
    }
  }

  function save() {
    try {
      localStorage.setItem(KEY, JSON.stringify([...chosen]));
    } catch (error) {
      warnOfStorage(); // private windows and full disks refuse
    }
  }

  function warnOfStorage() {
    element("kept-where").textContent = "";
    element("problem").textContent =
      "This browser keeps no progress for this page: download before you close it.";
    element("problem").hidden = false;
  }

  // --- Decisions -------------------------------------------------------------------------------

  /** Give a sample a class; undefined makes it unreviewed again. */
  function decide(sample, label) {
    const before = chosen.get(sample.index);
    if (label === before) return;
    undoable.push([sample.index, before]);
    set(sample, label);
  }

  /** As a button does that is pressed, and pressed again. */
  function toggle(sample, label) {
    decide(sample, chosen.get(sample.index) === label ? undefined : label);
  }

  function set(sample, label) {
    if (label === undefined) chosen.delete(sample.index);
    else chosen.set(sample.index, label);
    save();
    const card = document.querySelector(`.card[data-index="${sample.index}"]`);
    if (card) showDecision(card, sample);
    showProgress();
    say(`Sample ${sample.index}: ${verdict(sample) || "to review"}. ${progressText()}`);
  }

  function undo() {
    const last = undoable.pop();
    if (!last) return;
    const sample = sampleOf.get(last[0]);
    set(sample, last[1]);
    const place = view.indexOf(sample);
    if (place >= 0) goTo(place);
  }

  function verdict(sample) {
    const label = chosen.get(sample.index);
    if (label === undefined) return "";
    return label === sample.given ? `kept ${classes[label]}` : `now ${classes[label]}`;
  }

  // --- Filters and order -----------------------------------------------------------------------

  const filters = {
    given: element("by-given"), suggested: element("by-suggested"), state: element("by-state"),
    text: element("by-text"), sort: element("sort"),
  };

  const inState = {
    open: (sample) => !chosen.has(sample.index),
    done: (sample) => chosen.has(sample.index),
    changed: (sample) => chosen.has(sample.index) && chosen.get(sample.index) !== sample.given,
    kept: (sample) => chosen.get(sample.index) === sample.given,
  };

  const orders = {
    index: (a, b) => a.index - b.index,
    pair: (a, b) => a.given - b.given || a.suggested - b.suggested,
    sure: (a, b) => b.pSuggested - a.pSuggested,
  };

  function searchable(sample) {
    if (sample.words === undefined) {
      const parts = [sample.index, sample.text || "", ...(sample.row || []).flat()];
      sample.words = [...parts, classes[sample.given], classes[sample.suggested]]
        .join("\n").toLowerCase();
    }
    return sample.words;
  }

  /** Decisions alone never call this: a sample must not vanish under the hand that decides it. */
  function applyFilters() {
    const text = filters.text.value.trim().toLowerCase();
    view = samples.filter((sample) =>
      (filters.given.value === "" || sample.given === Number(filters.given.value)) &&
      (filters.suggested.value === "" || sample.suggested === Number(filters.suggested.value)) &&
      (filters.state.value === "" || inState[filters.state.value](sample)) &&
      (text === "" || searchable(sample).includes(text)));
    const order = orders[filters.sort.value];
    if (order) view.sort(order); // samples come most suspicious first
    page = 0;
    current = 0;
    for (const pair of document.querySelectorAll(".pair")) {
      const isOn = pair.dataset.given === filters.given.value &&
        pair.dataset.suggested === filters.suggested.value;
      pair.setAttribute("aria-pressed", String(isOn));
    }
    showPage();
    say(`${view.length} samples shown.`);
  }

  function fillFilter(select, numbers) {
    for (const number of [...new Set(numbers)].sort((a, b) => a - b)) {
      select.append(new Option(short(classes[number]), number));
    }
  }

  // --- What is shown ---------------------------------------------------------------------------

  function showPage() {
    const cards = view.slice(page * PAGE_SIZE, (page + 1) * PAGE_SIZE).map(makeCard);
    element("cards").replaceChildren(...cards);
    element("nothing").hidden = view.length > 0;
    const pages = Math.max(1, Math.ceil(view.length / PAGE_SIZE));
    element("page-text").textContent = `${page + 1} of ${pages}`;
    element("previous").disabled = page === 0;
    element("next").disabled = page >= pages - 1;
    markCurrent();
  }

  function makeCard(sample) {
    const card = element("card").content.firstElementChild.cloneNode(true);
    const put = (selector, text) => {
      const target = card.querySelector(selector);
      target.textContent = text;
      target.title = text;
    };
    card.dataset.index = sample.index;
    card.setAttribute("aria-label", `Sample ${sample.index}: given ${classes[sample.given]}, ` +
      `suggested ${classes[sample.suggested]}`);
    put(".given", classes[sample.given]);
    put(".suggested", classes[sample.suggested]);
    card.querySelector(".p-given").textContent = percent(sample.pGiven);
    card.querySelector(".p-suggested").textContent = percent(sample.pSuggested);
    card.querySelector(".index").textContent = `sample ${sample.index}`;
    card.querySelector(".look").append(...look(sample));
    const select = card.querySelector(".choose");
    select.setAttribute("aria-label", `Another class for sample ${sample.index}`);
    select.append(new Option("other class …", ""));
    // Filled only when needed: a thousand classes in each of 24 cards would be slow.
    const fill = () => {
      if (select.length > classes.length) return;
      const options = classes.map((name, number) => new Option(short(name), number));
      select.replaceChildren(select.options[0], ...options);
      showDecision(card, sample);
    };
    if (classes.length <= 30) fill();
    for (const event of ["pointerdown", "focus"]) select.addEventListener(event, fill);
    select.addEventListener("change", () => {
      decide(sample, select.value === "" ? undefined : Number(select.value));
    });
    card.querySelector(".accept").addEventListener("click", () => toggle(sample, sample.suggested));
    card.querySelector(".reject").addEventListener("click", () => toggle(sample, sample.given));
    for (const event of ["pointerdown", "focusin"]) {
      card.addEventListener(event, () => {
        current = [...element("cards").children].indexOf(card);
        markCurrent();
      });
    }
    showDecision(card, sample);
    return card;
  }

  /** The picture, the row or the text, whichever there is. */
  function look(sample) {
    const parts = [];
    if (sample.picture) {
      const image = new Image();
      image.alt = `Picture of sample ${sample.index}`;
      image.src = sample.picture;
      if (sample.picture.startsWith("data:image/png")) image.className = "pixels"; // a small one
      parts.push(image);
    }
    if (sample.row) parts.push(makeRow(sample));
    if (sample.text) {
      const text = make("p", sample.picture ? "path" : "text", sample.text);
      text.dir = "auto";
      parts.push(text);
    }
    return parts;
  }

  function makeRow(sample) {
    const list = document.createElement("dl");
    for (const [column, value] of sample.row) {
      const pair = document.createElement("div");
      pair.append(make("dt", "", column), make("dd", "", value));
      list.append(pair);
    }
    if (sample.more) list.append(make("div", "quiet", `and ${sample.more} more columns`));
    return list;
  }

  function showDecision(card, sample) {
    const label = chosen.get(sample.index);
    card.classList.toggle("changed", label !== undefined && label !== sample.given);
    card.classList.toggle("kept", label === sample.given);
    card.querySelector(".verdict").textContent = verdict(sample);
    const press = (selector, name, isOn) => {
      const button = card.querySelector(selector);
      button.setAttribute("aria-pressed", String(isOn));
      button.setAttribute("aria-label", name);
    };
    press(".accept", `Accept ${classes[sample.suggested]}`, label === sample.suggested);
    press(".reject", `Keep ${classes[sample.given]}`, label === sample.given);
    const isOther = label !== undefined && label !== sample.given && label !== sample.suggested;
    const select = card.querySelector(".choose");
    if (isOther && select.length === 1) select.append(new Option(short(classes[label]), label));
    select.value = isOther ? String(label) : "";
  }

  function markCurrent() {
    [...element("cards").children].forEach((card, place) => {
      card.classList.toggle("current", place === current);
      card.tabIndex = place === current ? 0 : -1;
    });
  }

  function progressText() {
    const kept = samples.filter(inState.kept).length;
    return `${chosen.size} of ${samples.length.toLocaleString("en")} reviewed: ` +
      `${chosen.size - kept} changed, ${kept} kept`;
  }

  function showProgress() {
    element("progress").value = chosen.size;
    element("progress-text").textContent = progressText();
    element("undo").disabled = undoable.length === 0;
  }

  function say(text) {
    element("said").textContent = text;
  }

  // --- Moving about ----------------------------------------------------------------------------

  /** To a place in the view, on whichever page it lies. */
  function goTo(wantedPlace) {
    const place = Math.max(0, Math.min(wantedPlace, view.length - 1));
    const wanted = Math.floor(place / PAGE_SIZE);
    current = place % PAGE_SIZE;
    if (wanted !== page) {
      page = wanted;
      showPage();
    }
    const card = element("cards").children[current];
    card.focus({ preventScroll: true });
    card.scrollIntoView({ block: "nearest" });
    markCurrent();
  }

  function turnTo(number) {
    page = number;
    current = 0;
    showPage();
    element("filters").scrollIntoView({ block: "start" });
  }

  function columns() {
    const tops = [...element("cards").children].map((card) => card.offsetTop);
    return tops.filter((top) => top === tops[0]).length;
  }

  function onKey(event) {
    const { key, target } = event;
    const isTyping = target.closest("input[type=search], select, textarea");
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping) return;
    if (!element("shortcuts").checked || !view.length) return;
    const here = page * PAGE_SIZE + current;
    const sample = view[here];
    // Outside, the first key only leads to the samples: nothing is decided unseen, and arrows scroll.
    const isInCards = target.closest(".cards") !== null;
    const step = (by) => goTo(isInCards ? here + by : here);
    const decideAndMove = (label) => {
      if (isInCards) decide(sample, label);
      step(1);
    };
    if (key === "j") step(1);
    else if (key === "k") step(-1);
    else if (key === "ArrowRight" && isInCards) step(1);
    else if (key === "ArrowLeft" && isInCards) step(-1);
    else if (key === "ArrowDown" && isInCards) step(columns());
    else if (key === "ArrowUp" && isInCards) step(-columns());
    else if (key === "a") decideAndMove(sample.suggested);
    else if (key === "r") decideAndMove(sample.given);
    else if (key === "u") undo();
    else if (Object.hasOwn(data.keys, key)) decideAndMove(data.keys[key]);
    else return;
    event.preventDefault();
  }

  // --- The corrected labels --------------------------------------------------------------------

  function unpacked({ size, base64 }) {
    const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    const numbers = new Uint32Array(data.total);
    for (let i = 0; i < data.total; i += 1) {
      for (let part = size - 1; part >= 0; part -= 1) {
        numbers[i] = numbers[i] * 256 + bytes[i * size + part];
      }
    }
    return numbers;
  }

  function download() {
    const rows = data.rows && unpacked(data.rows); // null: every row of the data has a label
    const lines = [data.header];
    unpacked(data.labels).forEach((label, place) => {
      const index = rows ? rows[place] : place;
      lines.push(`${index},${data.cells[chosen.get(index) ?? label]}`);
    });
    // The mark at the start tells spreadsheets that it is UTF-8.
    const file = new Blob([`\ufeff${lines.join("\n")}\n`], { type: "text/csv;charset=utf-8" });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(file);
    link.download = data.file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    say(`${data.file} with ${data.total} labels downloaded.`);
  }

  // --- Small helpers ---------------------------------------------------------------------------

  function make(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    made.textContent = text;
    return made;
  }

  function percent(share) {
    const value = 100 * share;
    return value > 0 && value < 1 ? "< 1 %" : `${Math.round(value)} %`;
  }

  function short(name) {
    return name.length > 60 ? `${name.slice(0, 59)}…` : name;
  }

  // --- Begin -----------------------------------------------------------------------------------

  load();
  fillFilter(filters.given, samples.map((sample) => sample.given));
  fillFilter(filters.suggested, samples.map((sample) => sample.suggested));
  if (samples.some((sample) => sample.picture)) element("cards").classList.add("pictures");
  for (const filter of Object.values(filters)) filter.addEventListener("input", applyFilters);
  element("filters").addEventListener("submit", (event) => event.preventDefault());
  for (const pair of document.querySelectorAll(".pair")) {
    pair.addEventListener("click", () => {
      const wasOn = pair.getAttribute("aria-pressed") === "true";
      filters.given.value = wasOn ? "" : pair.dataset.given;
      filters.suggested.value = wasOn ? "" : pair.dataset.suggested;
      applyFilters();
    });
  }
  element("previous").addEventListener("click", () => turnTo(page - 1));
  element("next").addEventListener("click", () => turnTo(page + 1));
  element("undo").addEventListener("click", undo);
  element("download").addEventListener("click", download);
  element("shortcuts").addEventListener("change", (event) => {
    element("shortcuts").closest(".help").classList.toggle("off", !event.target.checked);
  });
  document.addEventListener("keydown", onKey);
  addEventListener("storage", (event) => {
    if (event.key !== KEY) return;
    load(); // the same report is under review in another tab
    showPage();
    showProgress();
  });
  element("tool").hidden = false;
  applyFilters();
  showProgress();
  say("");
})();
