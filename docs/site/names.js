// The page of compatibility: a box that searches the folded groups of names.
// An address may bring the words along: compatibility.html?names=LAMB

function searchNames() {
  const groups = [...document.querySelectorAll("details.names")];
  if (!groups.length) return;
  // The comma after a name is hidden with the name.
  for (const code of document.querySelectorAll("details.names p code")) {
    const name = document.createElement("span");
    const comma = code.nextSibling;
    code.before(name);
    name.append(code);
    if (comma) name.append(comma);
  }
  const items = groups.map((group) => [...group.querySelectorAll("tbody tr, p span")]);
  const total = items.reduce((sum, own) => sum + own.length, 0);

  const box = document.createElement("input");
  box.type = "search";
  box.className = "names-search md-input";
  box.placeholder = `Search ${total} names`;
  box.setAttribute("aria-label", box.placeholder);
  const found = document.createElement("span");
  found.setAttribute("role", "status");
  const line = document.createElement("p");
  line.append(box, " ", found);
  document.querySelector("article h1").after(line);

  function show() {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let matches = 0;
    groups.forEach((group, number) => {
      const title = group.querySelector("summary").textContent.toLowerCase();
      let own = 0;
      for (const item of items[number]) {
        const text = item.tagName === "TR" ? item.textContent : `${item.textContent} ${title}`;
        const fits = words.every((word) => text.toLowerCase().includes(word));
        item.classList.toggle("names-hidden", !fits);
        own += fits;
      }
      group.classList.toggle("names-hidden", own === 0);
      group.open = words.length > 0 && own > 0;
      matches += own;
    });
    // What stands between the box and the matches, and headings without matches, give way.
    let heading = null;
    for (let one = line.nextElementSibling; one; one = one.nextElementSibling) {
      if (one.tagName === "H2") heading = one;
      if (!one.matches("details.names")) {
        one.classList.toggle("names-hidden", words.length > 0);
      } else if (!one.classList.contains("names-hidden") && heading) {
        heading.classList.remove("names-hidden");
      }
    }
    found.textContent = words.length ? `${matches} of ${total}` : "";
  }

  box.addEventListener("input", show);
  box.value = new URLSearchParams(location.search).get("names") || "";
  if (box.value) show();
}

document.addEventListener("DOMContentLoaded", searchNames);
