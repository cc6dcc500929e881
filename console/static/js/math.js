// Formulas in TeX as MathML. Elements are made one by one with text in them, so that nothing in a formula can be markup.
// What is not known here is a SyntaxError, and the page shows the source.

const MATHML = "http://www.w3.org/1998/Math/MathML";
const MAX_DEPTH = 40;
const MAX_LENGTH = 5000;

const table = (text) => new Map(text.trim().split(/\s+/).map((pair) => pair.split(/:(.+)/)));
const LETTERS = table(`alpha:α beta:β gamma:γ delta:δ epsilon:ϵ varepsilon:ε zeta:ζ eta:η theta:θ vartheta:ϑ iota:ι kappa:κ lambda:λ mu:μ nu:ν xi:ξ pi:π varpi:ϖ rho:ρ varrho:ϱ sigma:σ varsigma:ς tau:τ upsilon:υ phi:ϕ varphi:φ chi:χ psi:ψ
  omega:ω Gamma:Γ Delta:Δ Theta:Θ Lambda:Λ Xi:Ξ Pi:Π Sigma:Σ Upsilon:Υ Phi:Φ Psi:Ψ Omega:Ω infty:∞ partial:∂ nabla:∇ ell:ℓ hbar:ℏ Re:ℜ Im:ℑ aleph:ℵ emptyset:∅ varnothing:∅ forall:∀ exists:∃ nexists:∄ top:⊤ bot:⊥
  angle:∠ triangle:△ degree:° ldots:… dots:… cdots:⋯ vdots:⋮ ddots:⋱ imath:ı jmath:ȷ prime:′ $:$ %:% #:# _:_ square:□ Box:□ blacksquare:■ checkmark:✓`);
const OPERATORS = table(`times:× div:÷ cdot:⋅ pm:± mp:∓ ast:∗ star:⋆ circ:∘ bullet:∙ oplus:⊕ ominus:⊖ otimes:⊗ odot:⊙ wedge:∧ land:∧ vee:∨ lor:∨ neg:¬ lnot:¬ cap:∩ cup:∪ setminus:∖ le:≤ leq:≤ ge:≥ geq:≥ leqslant:⩽ geqslant:⩾ ll:≪ gg:≫ ne:≠
  neq:≠ equiv:≡ approx:≈ sim:∼ simeq:≃ cong:≅ propto:∝ prec:≺ succ:≻ in:∈ notin:∉ ni:∋ subset:⊂ supset:⊃ subseteq:⊆ supseteq:⊇ perp:⊥ parallel:∥ mid:∣ nmid:∤ vdash:⊢ models:⊨ to:→ rightarrow:→ leftarrow:← gets:←
  leftrightarrow:↔ Rightarrow:⇒ Leftarrow:⇐ Leftrightarrow:⇔ implies:⟹ impliedby:⟸ iff:⟺ longrightarrow:⟶ mapsto:↦ uparrow:↑ downarrow:↓ hookrightarrow:↪ therefore:∴ because:∵ colon:: coloneqq:≔ &:& lbrace:{ rbrace:}
  {:{ }:} |:‖ Vert:‖ lVert:‖ rVert:‖ vert:| lvert:| rvert:| langle:⟨ rangle:⟩ lfloor:⌊ rfloor:⌋ lceil:⌈ rceil:⌉ lbrack:[ rbrack:] backslash:∖ triangleq:≜ asymp:≍ doteq:≐ bmod:mod`);
const BIG = table("sum:∑ prod:∏ coprod:∐ bigcup:⋃ bigcap:⋂ bigoplus:⨁ bigotimes:⨂ bigvee:⋁ bigwedge:⋀ int:∫ iint:∬ iiint:∭ oint:∮");
const NAMES = new Set("sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan log ln lg exp dim ker deg arg hom".split(" "));
const LIMITS = new Set("∑ ∏ ∐ ⋃ ⋂ ⨁ ⨂ ⋁ ⋀ lim max min sup inf det gcd Pr limsup liminf argmax argmin".split(" ")); // with scripts below and above
const ACCENTS = table("hat:^ widehat:^ bar:¯ overline:‾ vec:→ overrightarrow:→ tilde:~ widetilde:~ dot:˙ ddot:¨ check:ˇ breve:˘ overbrace:⏞ underline:_ underbrace:⏟");
const SPACES = new Map([[",", 0.17], [":", 0.22], [">", 0.22], [";", 0.28], [" ", 0.25], ["!", -0.17], ["quad", 1], ["qquad", 2], ["\n", 0.25]]);
const IGNORED = /^(?:[bB]igg?[lrm]?|displaystyle|textstyle|(?:no)?limits|nonumber|notag)$/;
const TEXT = /^(?:text(?:rm|normal|bf|it)?|mbox|mathrm)$/;
const FENCES = { matrix: "", pmatrix: "()", bmatrix: "[]", Bmatrix: "{}", vmatrix: "||", Vmatrix: "‖‖", array: "", cases: "{", aligned: "", align: "", split: "", gather: "", gathered: "", equation: "" };

const ORDER = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
const BOLD = Array.from(ORDER, (_, i) => String.fromCodePoint(i < 52 ? 0x1d400 + i : 0x1d7ce + i - 52));
const SCRIPT = Array.from("𝒜ℬ𝒞𝒟ℰℱ𝒢ℋℐ𝒥𝒦ℒℳ𝒩𝒪𝒫𝒬ℛ𝒮𝒯𝒰𝒱𝒲𝒳𝒴𝒵");
const ALPHABETS = { mathbf: BOLD, boldsymbol: BOLD, bm: BOLD, mathcal: SCRIPT, mathscr: SCRIPT, mathbb: Array.from("𝔸𝔹ℂ𝔻𝔼𝔽𝔾ℍ𝕀𝕁𝕂𝕃𝕄ℕ𝕆ℙℚℝ𝕊𝕋𝕌𝕍𝕎𝕏𝕐ℤ"), mathfrak: Array.from("𝔄𝔅ℭ𝔇𝔈𝔉𝔊ℌℑ𝔍𝔎𝔏𝔐𝔑𝔒𝔓𝔔ℜ𝔖𝔗𝔘𝔙𝔚𝔛𝔜ℨ") };

function element(name, children, attributes = {}) {
  const made = document.createElementNS(MATHML, name);
  made.append(...[children].flat());
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

const row = (children) => (children.length === 1 ? children[0] : element("mrow", children));
const operator = (text, attributes = { stretchy: "false" }) => element("mo", text, attributes);
const named = (text) => operator(text, { form: "prefix", lspace: "0", rspace: "0.17em" });
const fenced = (open, inner, close) => element("mrow", [open && operator(open, { stretchy: "true" }), ...inner, close && operator(close, { stretchy: "true" })].filter(Boolean));

function restyled(made, alphabet) {
  const restyle = (text) => Array.from(text, (letter) => alphabet[ORDER.indexOf(letter)] ?? letter).join("");
  for (const each of made.matches("mi, mn") ? [made] : made.querySelectorAll("mi, mn")) each.textContent = restyle(each.textContent);
  return made;
}

class Parser {
  constructor(source, isDisplay) {
    this.tokens = source.match(/\\[a-zA-Z]+\*?|\\[^]|\d+(?:[.,]\d+)*|\s+|[^]/gu) ?? [];
    this.isDisplay = isDisplay;
    this.at = this.depth = 0;
  }

  peek() {
    while (this.tokens[this.at]?.trim() === "") this.at++;
    return this.tokens[this.at];
  }

  next() {
    const token = this.peek();
    if (token === undefined) throw new SyntaxError("the formula ends too early");
    this.at++;
    return token;
  }

  /** Elements up to one of the tokens, which is left. */
  until(...ends) {
    const found = [];
    while (!ends.includes(this.peek())) found.push(this.scripted());
    return found;
  }

  /** What a command applies to: a group or one token. */
  argument() {
    if (this.peek() !== "{") return this.atom();
    this.at++;
    const found = element("mrow", this.until("}"));
    this.at++;
    return found;
  }

  /** The text of a group as it is written. */
  text() {
    if (this.next() !== "{") throw new SyntaxError("{ is missing");
    const begin = this.at;
    for (let depth = 1; depth; this.at++) {
      const token = this.tokens[this.at];
      if (token === undefined) throw new SyntaxError("} is missing");
      depth += (token === "{") - (token === "}");
    }
    return this.tokens.slice(begin, this.at - 1).join("").replace(/\\([ ,;$%&#_{}])/g, "$1").replaceAll("$", "");
  }

  /** An atom with what stands below and above it. */
  scripted() {
    const base = /^[_^]$/.test(this.peek() ?? "") ? element("mrow", []) : this.atom();
    let [below, above] = [null, null];
    for (let token = this.peek(); token === "_" || token === "^" || token === "'"; token = this.peek()) {
      this.at++;
      if (token === "_") below = this.argument();
      else above = row([above, token === "'" ? operator("′") : this.argument()].filter(Boolean));
    }
    if (!below && !above) return base;
    const isStacked = /[⏞⏟]$/.test(base.textContent) || (this.isDisplay && base.localName === "mo" && LIMITS.has(base.textContent.replace("\u00a0", "")));
    const [under, over] = isStacked ? ["munder", "mover"] : ["msub", "msup"];
    if (below && above) return element(isStacked ? "munderover" : "msubsup", [base, below, above]);
    return below ? element(under, [base, below]) : element(over, [base, above]);
  }

  atom() {
    if (++this.depth > MAX_DEPTH) throw new SyntaxError("nested too deeply");
    const found = this.read(this.next());
    this.depth--;
    return found;
  }

  read(token) {
    if (token.length > 1 && token[0] === "\\") return this.command(token.slice(1));
    if (token === "{") return ((this.at -= 1), this.argument());
    if (/^[}&^_\\]$/.test(token)) throw new SyntaxError(`${token} stands alone`);
    if (/^\d/.test(token)) return element("mn", token);
    if (/^\p{L}$/u.test(token)) return element("mi", token);
    if (token === "~") return element("mspace", [], { width: "0.25em" });
    return operator({ "-": "−", "*": "∗", "'": "′" }[token] ?? token);
  }

  command(name) {
    const plain = name.replace("*", "").replace(/^[dtc]frac$/, "frac");
    if (LETTERS.has(name)) return element("mi", LETTERS.get(name), /^[A-Z]/.test(name) ? { mathvariant: "normal" } : {});
    if (OPERATORS.has(name)) return operator(OPERATORS.get(name));
    if (BIG.has(name)) return operator(BIG.get(name), {});
    if (NAMES.has(name) || LIMITS.has(name)) return named(name.replace(/^(lim|arg)(?=.)/, "$1\u00a0"));
    if (ACCENTS.has(name)) return element(name.startsWith("under") ? "munder" : "mover", [this.argument(), operator(ACCENTS.get(name), {})], { accent: "true" });
    if (SPACES.has(name)) return element("mspace", [], { width: `${SPACES.get(name)}em` });
    if (IGNORED.test(name)) return element("mrow", []);
    if (TEXT.test(plain)) return element("mtext", this.text().replaceAll(" ", "\u00a0"));
    if (plain === "operatorname") return named(this.text());
    if (Object.hasOwn(ALPHABETS, name)) return restyled(this.argument(), ALPHABETS[name]);
    if (Object.hasOwn(STRUCTURES, plain)) return STRUCTURES[plain](this);
    throw new SyntaxError(`\\${name} is not known`);
  }

  delimiter() {
    const token = this.next();
    const found = token[0] === "\\" ? OPERATORS.get(token.slice(1)) : ({ "<": "⟨", ">": "⟩", ".": "" }[token] ?? token);
    if (found === undefined) throw new SyntaxError(`${token} is no delimiter`);
    return found;
  }

  environment() {
    const name = this.text();
    const fences = FENCES[name.replace("*", "")];
    if (typeof fences !== "string") throw new SyntaxError(`${name} is not known`);
    if (name === "array") this.text();
    const rows = [[]];
    for (let end = ""; end !== "\\end"; ) {
      rows.at(-1).push(element("mtd", this.until("&", "\\\\", "\\end")));
      end = this.next();
      if (end === "\\\\") rows.push([]);
      if (end === "\\\\" && this.peek() === "[") while (this.next() !== "]"); // a distance
    }
    if (this.text() !== name) throw new SyntaxError(`\\end{${name}} is missing`);
    if (rows.at(-1).every((cell) => !cell.childNodes.length)) rows.pop();
    const kind = /^(align|split)/.test(name) ? "aligned" : name === "cases" ? "cases" : "";
    return fenced(fences[0], [element("mtable", rows.map((cells) => element("mtr", cells)), kind && { class: kind })], fences[1]);
  }
}

const STRUCTURES = {
  frac: (parser) => element("mfrac", [parser.argument(), parser.argument()]),
  binom: (parser) => fenced("(", [element("mfrac", [parser.argument(), parser.argument()], { linethickness: "0" })], ")"),
  sqrt(parser) {
    if (parser.peek() !== "[") return element("msqrt", parser.argument());
    parser.at++;
    const degree = row(parser.until("]"));
    parser.at++;
    return element("mroot", [parser.argument(), degree]);
  },
  left(parser) {
    const open = parser.delimiter();
    const inner = parser.until("\\right");
    parser.at++;
    return fenced(open, inner, parser.delimiter());
  },
  overset: (parser) => element("mover", [parser.argument(), parser.argument()].reverse()),
  underset: (parser) => element("munder", [parser.argument(), parser.argument()].reverse()),
  xrightarrow: (parser) => element("mover", [operator("→", {}), parser.argument()]),
  boxed: (parser) => element("mrow", parser.argument(), { class: "boxed" }),
  pmod: (parser) => fenced("(", [element("mtext", "mod\u00a0"), parser.argument()], ")"),
  not: (parser) => operator(`${parser.next().replace(/^\\(\w+)$/, (_, name) => OPERATORS.get(name) ?? name)}\u0338`),
  begin: (parser) => parser.environment(),
};

/** The formula as a `math` element. Throws SyntaxError. */
export function formulaOf(source, isDisplay) {
  if (source.length > MAX_LENGTH) throw new SyntaxError("too long");
  const parser = new Parser(source, isDisplay);
  return element("math", parser.until(undefined), { display: isDisplay ? "block" : "inline" });
}
