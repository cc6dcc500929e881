"""Word lists of the small world that the default model knows: plain facts and common words, no text from elsewhere."""

# ruff: noqa: SIM905 - a word list reads better as words

from __future__ import annotations

NAMES = tuple(
    "Anna Ben Clara David Emma Felix Grace Hugo Iris Jack Kate Leo Mia Noah Olivia Paul Rosa Sam Tina Victor Wendy "
    "Alice Bob Carol Daniel Ella Frank Gina Henry Ivy John Karen Lucas Maria Nina Oscar Peter Rita Simon Tom Uma Vera "
    "Walter Yara Zoe Adam Bella Carlos Diana Eric Fiona George Hannah Ian Julia Kevin Laura Mark Nora Omar Priya "
    "Robert Sara Thomas Lily Max Lucy Ali Chen Yuki Amir Sofia Ravi Mary James Linda Sarah Alex Chris".split()
)
ANIMALS = tuple(
    "fox rabbit bear mouse owl cat dog frog turtle duck hedgehog squirrel goat pony lamb otter badger crow deer "
    "penguin elephant monkey lion tiger horse cow pig sheep hen wolf bee snail robin dragon kitten puppy".split()
)
COLORS = tuple("red blue green yellow orange purple pink brown black white gray silver gold turquoise violet".split())
FOODS = tuple(
    "apple bread cheese soup cake pizza rice pasta honey banana cherry carrot potato salad cookie pancake peach pear "
    "plum lemon tomato onion egg butter milk tea coffee juice melon grape".split()
)
OBJECTS = tuple(
    "key lantern kite drum boat map bell ring hat scarf book lamp clock mirror coin basket ball box brush button "
    "candle flute hammer ladder pencil rope shell spoon umbrella violin whistle wagon compass blanket cup bag bottle "
    "chair desk table door window bicycle camera guitar letter pillow plate shirt shoe stone ticket watch".split()
)
PLACES = tuple(
    "forest village river mountain garden harbor meadow castle farm market valley island lake cave town bridge beach "
    "library mill orchard hill tower field".split()
)
FEELINGS = tuple("happy sad tired brave calm proud lonely worried curious hungry sleepy glad".split())
JOBS = tuple(
    "baker teacher doctor farmer pilot painter singer nurse writer cook driver gardener engineer sailor tailor miller "
    "plumber lawyer chemist dancer".split()
)
OTHERS = tuple(
    "sun moon star cloud rain snow wind storm night morning summer winter spring autumn tree flower leaf grass rock "
    "sand water fire earth light road house school train plane car ship wheel engine paper music song dance game story "
    "word name number money friend mother father sister brother child baby king queen doctor city country world "
    "hand foot head eye ear nose mouth hair arm leg finger heart dream idea plan question answer problem secret "
    "run walk jump swim read write sing cook draw build open close find give take make bring keep learn teach think "
    "speak listen big small fast slow hot cold new old good bad long short high low strong weak rich poor clean dirty "
    "quiet loud early late soft hard heavy light bright dark sweet sour planet rocket garden monkey silver pocket "
    "basket winter window yellow purple orange banana lemon tomato strawberry blueberry raspberry chocolate sandwich "
    "computer keyboard server network memory neuron token model python hello mississippi elephant butterfly dinosaur "
    "hospital holiday mountain birthday bathroom kitchen language history science library language sentence paragraph "
    "letter alphabet bookkeeper balloon coffee pepper summer rabbit kitten puppy hammer ladder mirror carrot".split()
)
PLAIN = tuple(sorted({w for group in (ANIMALS, COLORS, FOODS, OBJECTS, PLACES, FEELINGS, JOBS, OTHERS) for w in group}))

CAPITALS = dict(
    pair.split(":")
    for pair in (
        "France:Paris|Germany:Berlin|Italy:Rome|Spain:Madrid|Portugal:Lisbon|Austria:Vienna|Belgium:Brussels|"
        "the Netherlands:Amsterdam|Denmark:Copenhagen|Sweden:Stockholm|Norway:Oslo|Finland:Helsinki|Iceland:Reykjavik|"
        "Ireland:Dublin|the United Kingdom:London|England:London|Scotland:Edinburgh|Poland:Warsaw|"
        "the Czech Republic:Prague|Hungary:Budapest|Greece:Athens|Turkey:Ankara|Russia:Moscow|Ukraine:Kyiv|"
        "Romania:Bucharest|Bulgaria:Sofia|Serbia:Belgrade|Croatia:Zagreb|Switzerland:Bern|Egypt:Cairo|Morocco:Rabat|"
        "Kenya:Nairobi|Nigeria:Abuja|Ethiopia:Addis Ababa|Ghana:Accra|Senegal:Dakar|Tunisia:Tunis|Japan:Tokyo|"
        "China:Beijing|South Korea:Seoul|India:New Delhi|Pakistan:Islamabad|Thailand:Bangkok|Vietnam:Hanoi|"
        "Indonesia:Jakarta|the Philippines:Manila|Iran:Tehran|Iraq:Baghdad|Saudi Arabia:Riyadh|Israel:Jerusalem|"
        "Australia:Canberra|New Zealand:Wellington|Canada:Ottawa|the United States:Washington|Mexico:Mexico City|"
        "Cuba:Havana|Brazil:Brasilia|Argentina:Buenos Aires|Chile:Santiago|Peru:Lima|Colombia:Bogota|"
        "Venezuela:Caracas|Ecuador:Quito|Uruguay:Montevideo"
    ).split("|")
)
CITIES = tuple(sorted({*CAPITALS.values(), "New York", "Milan", "Munich", "Seattle", "Boston", "Sydney", "Mumbai"}))
WEEKDAYS = tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())
MONTHS = tuple("January February March April May June July August September October November December".split())
MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
OPPOSITES = dict(
    pair.split(":")
    for pair in (
        "hot:cold big:small fast:slow high:low early:late happy:sad light:dark soft:hard new:old good:bad long:short "
        "strong:weak rich:poor clean:dirty quiet:loud open:closed full:empty wet:dry thick:thin left:right up:down "
        "day:night black:white young:old near:far deep:shallow sweet:sour true:false first:last"
    ).split()
)
SOUNDS = dict(
    pair.split(":")
    for pair in "dog:woof cat:meow cow:moo duck:quack sheep:baa pig:oink lion:roar bee:buzz frog:ribbit owl:hoot "
    "mouse:squeak hen:cluck wolf:howl crow:caw horse:neigh".split()
)
THING_COLORS = dict(
    pair.split(":")
    for pair in "banana:yellow grass:green snow:white cherry:red carrot:orange sky:blue coal:black lemon:yellow "
    "tomato:red plum:purple leaf:green milk:white".replace("sky", "the_sky").split()
)
UNITS = (  # (larger, smaller, how many of the smaller in one larger)
    ("minute", "seconds", 60),
    ("hour", "minutes", 60),
    ("day", "hours", 24),
    ("week", "days", 7),
    ("year", "months", 12),
    ("meter", "centimeters", 100),
    ("kilometer", "meters", 1000),
    ("centimeter", "millimeters", 10),
    ("kilogram", "grams", 1000),
    ("ton", "kilograms", 1000),
    ("liter", "milliliters", 1000),
    ("dozen", "pieces", 12),
    ("century", "years", 100),
    ("decade", "years", 10),
    ("foot", "inches", 12),
    ("yard", "feet", 3),
    ("kilobyte", "bytes", 1024),
)
