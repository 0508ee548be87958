#!/usr/bin/env python3
"""Checks and scores submissions to Kaggle's Quick, Draw! Doodle Recognition Challenge.

usage: kaggle.py check TEST.csv SUBMISSION.csv     TEST.csv: a column key_id, as test_simplified.csv has
       kaggle.py score SOLUTION.csv SUBMISSION.csv SOLUTION.csv: columns key_id and word

check: the header is key_id,word; each key of the test is there once, and no other; each row has one
to three different words, without blanks in them; words that are none of the challenge's 340 classes,
which Kaggle takes and counts as wrong, are named on stderr. score: the same, then "MAP@3 0.912345678": the mean over
the drawings of 1 / the place of the true word, 0 where it is not among the three. Standard library alone;
written from the competition's pages (Evaluation, Submission File), not from the program that it checks.
"""

import csv
import sys

MOST_WORDS = 3
CLASSES = (
    "The Eiffel Tower,The Great Wall of China,The Mona Lisa,airplane,alarm clock,ambulance,angel,"
    "animal migration,ant,anvil,apple,arm,asparagus,axe,backpack,banana,bandage,barn,baseball,"
    "baseball bat,basket,basketball,bat,bathtub,beach,bear,beard,bed,bee,belt,bench,bicycle,"
    "binoculars,bird,birthday cake,blackberry,blueberry,book,boomerang,bottlecap,bowtie,"
    "bracelet,brain,bread,bridge,broccoli,broom,bucket,bulldozer,bus,bush,butterfly,cactus,"
    "cake,calculator,calendar,camel,camera,camouflage,campfire,candle,cannon,canoe,car,carrot,"
    "castle,cat,ceiling fan,cell phone,cello,chair,chandelier,church,circle,clarinet,clock,"
    "cloud,coffee cup,compass,computer,cookie,cooler,couch,cow,crab,crayon,crocodile,crown,"
    "cruise ship,cup,diamond,dishwasher,diving board,dog,dolphin,donut,door,dragon,dresser,"
    "drill,drums,duck,dumbbell,ear,elbow,elephant,envelope,eraser,eye,eyeglasses,face,fan,"
    "feather,fence,finger,fire hydrant,fireplace,firetruck,fish,flamingo,flashlight,flip flops,"
    "floor lamp,flower,flying saucer,foot,fork,frog,frying pan,garden,garden hose,giraffe,"
    "goatee,golf club,grapes,grass,guitar,hamburger,hammer,hand,harp,hat,headphones,hedgehog,"
    "helicopter,helmet,hexagon,hockey puck,hockey stick,horse,hospital,hot air balloon,hot dog,"
    "hot tub,hourglass,house,house plant,hurricane,ice cream,jacket,jail,kangaroo,key,keyboard,"
    "knee,ladder,lantern,laptop,leaf,leg,light bulb,lighthouse,lightning,line,lion,lipstick,"
    "lobster,lollipop,mailbox,map,marker,matches,megaphone,mermaid,microphone,microwave,monkey,"
    "moon,mosquito,motorbike,mountain,mouse,moustache,mouth,mug,mushroom,nail,necklace,nose,"
    "ocean,octagon,octopus,onion,oven,owl,paint can,paintbrush,palm tree,panda,pants,"
    "paper clip,parachute,parrot,passport,peanut,pear,peas,pencil,penguin,piano,pickup truck,"
    "picture frame,pig,pillow,pineapple,pizza,pliers,police car,pond,pool,popsicle,postcard,"
    "potato,power outlet,purse,rabbit,raccoon,radio,rain,rainbow,rake,remote control,"
    "rhinoceros,river,roller coaster,rollerskates,sailboat,sandwich,saw,saxophone,school bus,"
    "scissors,scorpion,screwdriver,sea turtle,see saw,shark,sheep,shoe,shorts,shovel,sink,"
    "skateboard,skull,skyscraper,sleeping bag,smiley face,snail,snake,snorkel,snowflake,snowman,"
    "soccer ball,sock,speedboat,spider,spoon,spreadsheet,square,squiggle,squirrel,stairs,star,"
    "steak,stereo,stethoscope,stitches,stop sign,stove,strawberry,streetlight,string bean,"
    "submarine,suitcase,sun,swan,sweater,swing set,sword,t-shirt,table,teapot,teddy-bear,"
    "telephone,television,tennis racquet,tent,tiger,toaster,toe,toilet,tooth,toothbrush,"
    "toothpaste,tornado,tractor,traffic light,train,tree,triangle,trombone,truck,trumpet,"
    "umbrella,underwear,van,vase,violin,washing machine,watermelon,waterslide,whale,wheel,"
    "windmill,wine bottle,wine glass,wristwatch,yoga,zebra,zigzag"
).split(",")


def rows_of(path, needed):
    """The rows of a CSV file as dictionaries; `needed`: columns that must be there."""
    csv.field_size_limit(1 << 30)
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [name for name in needed if name not in (reader.fieldnames or [])]
        if missing:
            sys.exit(f"{path}: got the columns {reader.fieldnames}, expected {', '.join(needed)}")
        return list(reader)


def words_by_key(path):
    """{key: words} of a submission; ends the program where it is none."""
    with open(path, newline="", encoding="utf-8") as file:
        lines = file.read().split("\n")
    if lines[0].rstrip("\r") != "key_id,word":
        sys.exit(f"{path}, line 1: got {lines[0]!r}, expected 'key_id,word'")
    if lines[-1] == "":
        lines.pop()
    said = {}
    for number, line in enumerate(lines[1:], 2):
        fields = next(csv.reader([line]), [])
        if len(fields) != 2 or not fields[0].isdecimal():
            sys.exit(f"{path}, line {number}: got {line!r}, expected a key and words")
        key, words = int(fields[0]), fields[1].split(" ")
        if key in said:
            sys.exit(f"{path}, line {number}: key_id {key} is there twice")
        if not 1 <= len(words) <= MOST_WORDS or "" in words or len(set(words)) != len(words):
            sys.exit(f"{path}, line {number}: got {fields[1]!r}, expected 1 to {MOST_WORDS} different words")
        said[key] = words
    return said


def check(test, submission):
    expected = [int(row["key_id"]) for row in rows_of(test, ["key_id"])]
    said = words_by_key(submission)
    for key in expected:
        if key not in said:
            sys.exit(f"{submission}: key_id {key} has no row")
    more = set(said) - set(expected)
    if more:
        sys.exit(f"{submission}: key_id {min(more)} is none of the test's")
    others = {word for words in said.values() for word in words} - {name.replace(" ", "_") for name in CLASSES}
    if others:
        print(f"{submission}: none of the {len(CLASSES)} classes: {', '.join(sorted(others))}", file=sys.stderr)
    return said


def score(solution, submission):
    said = check(solution, submission)
    total = 0.0
    truth = rows_of(solution, ["key_id", "word"])
    for row in truth:
        words, word = said[int(row["key_id"])], row["word"].replace(" ", "_")
        if word in words:
            total += 1 / (words.index(word) + 1)
    return total / len(truth)


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in ("check", "score"):
        sys.exit(__doc__)
    if sys.argv[1] == "check":
        print(f"{len(check(*sys.argv[2:]))} drawings, each with 1 to {MOST_WORDS} words")
    else:
        print(f"MAP@3 {score(*sys.argv[2:]):.9f}")


if __name__ == "__main__":
    main()
