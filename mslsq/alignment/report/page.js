// Without this script the two pictures of a comparison stand one beside the other; with it, one is swiped over the other.
for (const swipe of document.querySelectorAll(".swipe")) {
  const slider = swipe.querySelector("input"), tools = swipe.nextElementSibling, images = swipe.querySelectorAll("img");
  const [before, after] = [...images].map((image) => image.src);
  const pairs = { red: [before, after], grey: [tools.dataset.reference, tools.dataset.map].map((id) => document.getElementById(id).src) };
  const names = { red: ["before", "after"], grey: ["reference", tools.dataset.name] };
  const tags = swipe.querySelectorAll(".tag"), buttons = tools.querySelectorAll("button");
  let timer = null;
  const move = () => {
    swipe.style.setProperty("--at", slider.value + "%");
    slider.setAttribute("aria-valuetext", slider.value + " % " + tags[0].textContent);
  };
  const show = (kind) => {
    images.forEach((image, i) => { image.src = pairs[kind][i]; });
    tags.forEach((tag, i) => { tag.textContent = names[kind][i]; });
    move();
  };
  const stop = () => { clearInterval(timer); timer = null; };
  swipe.classList.add("on");
  tools.classList.add("on");
  slider.addEventListener("input", () => { stop(); buttons[1].setAttribute("aria-pressed", "false"); move(); });
  buttons[0].addEventListener("click", () => {
    const grey = buttons[0].getAttribute("aria-pressed") !== "true";
    buttons[0].setAttribute("aria-pressed", String(grey));
    show(grey ? "grey" : "red");
  });
  buttons[1].addEventListener("click", () => {  // once a second: slow enough to harm no one
    const on = timer === null;
    buttons[1].setAttribute("aria-pressed", String(on));
    if (!on) { stop(); return; }
    timer = setInterval(() => { slider.value = Number(slider.value) > 50 ? 0 : 100; move(); }, 1000);
  });
  show("red");
}
