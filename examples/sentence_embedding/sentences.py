"""Sixteen texts on four topics, from two words to a paragraph: real batches are as uneven as this."""

TEXTS = [
    ("kitchen", "Knead the dough."),
    ("kitchen", "Roast the tomatoes slowly with garlic and thyme until their edges turn dark and sweet."),
    (
        "kitchen",
        "A good soup starts long before the water boils: sweat the onions in butter without letting them brown, add carrots and "
        "celery cut small, stir in a spoon of flour so that it will thicken later, and only then pour in the stock, little by "
        "little, scraping up everything that has stuck to the bottom of the pot. Let it simmer with a bay leaf while you fry "
        "yesterday's bread in olive oil. Season at the very end, when the salt has nowhere left to hide, and finish each bowl with "
        "pepper, a few drops of lemon and whatever herbs the window sill has to offer.",
    ),
    ("kitchen", "My grandmother never weighed the flour for her bread, she judged it by hand."),
    ("sky", "Saturn has rings."),
    ("sky", "Last night the telescope showed four moons of Jupiter lined up like beads on a string."),
    (
        "sky",
        "When a heavy star has burned all the fuel in its core, nothing is left to hold up the layers above; the core collapses "
        "within a second, the outer shells are thrown into space as a supernova, and what remains is a neutron star or, if there "
        "was mass enough, a black hole from which not even light returns.",
    ),
    ("sky", "The comet will be visible to the naked eye before dawn, low in the east."),
    ("computer", "The program crashed."),
    ("computer", "She fixed the memory leak by freeing the buffer in the error path as well."),
    ("computer", "Compilers translate source code into machine instructions and remove work that is never needed."),
    (
        "computer",
        "The server answered slowly every night at two, so we logged each database query, found one that scanned a whole table "
        "because an index was missing, and after adding it the report that used to take an hour was done in eleven seconds.",
    ),
    ("garden", "Water the roses."),
    ("garden", "Sow the beans after the last frost, two fingers deep, and keep the soil moist."),
    ("garden", "Slugs ate all of my lettuce seedlings in a single rainy night."),
    (
        "garden",
        "Prune the apple tree in late winter while it sleeps: take out dead wood first, then branches that cross or grow inward, "
        "so that light and air can reach the blossoms in spring.",
    ),
]

# The quick start of the Sentence Transformers library prints the similarities of these three for this model: an independent
# implementation to agree with.
PUBLISHED = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
PUBLISHED_SIMILARITIES = {(0, 1): 0.6660, (0, 2): 0.1046, (1, 2): 0.1411}
