"""How the evaluation asks: written by hand, in words that the training does not use."""

PROJECT = """
In a nutshell, what have we got here?
Could you tell me what this code is good for?
Why does this project exist?
Give me the elevator pitch for this repository.
What problem does this package solve?
Explain this project to a newcomer in one sentence.
So what's this thing about?
I don't know this repo. What does it offer?
""".strip().splitlines()

FILE = """
Can you tell me what {path} is responsible for?
What happens in {path}?
Give me the gist of {path}.
I am looking at {path}. What is its job?
What would I find in {path}?
Quick question: what does {path} contain?
Sum up {path} for me.
Why do we have {path}?
""".strip().splitlines()

FILES = """
Compare {paths}: what is each for?
What are {paths} good for?
Can you explain {paths} to me?
Give me the gist of {paths}.
""".strip().splitlines()

WHERE = """
Where in the code does {name} live?
Which module has {name}?
I need the place where {name} is declared.
Point me to {name}.
Do you know where {name} is implemented?
Where do we define {name}?
Tell me the file and line of {name}.
Where was {name} written?
""".strip().splitlines()

GLOB = """
What files fit the pattern {glob}?
Please look for {glob}.
Give me every file that matches {glob}.
""".strip().splitlines()

KIND = """
Where are the {kind} files?
Are there any {kind} files in here?
Give me the names of the {kind} files.
""".strip().splitlines()

NAMED = """
I am looking for a file called {file}.
Where did they put {file}?
Do we have {file} somewhere?
""".strip().splitlines()

FOLDER = """
What do we keep in {folder}?
Give me the contents of the {folder} directory.
Which entries are in {folder}?
Look into {folder} and tell me what is there.
""".strip().splitlines()

VALUE = """
Which number or text is {name} assigned{where}?
Could you check what {name} is{where}?
What did they set {name} to{where}?
I need to know {name}{where}.
{name} has which value{where}?
""".strip().splitlines()

VERSION = """
Which release is this?
Can you see the version of this package?
What is the version number here?
""".strip().splitlines()

SET = """
Could you change {name}{where} so that it is {value}?
Assign {value} to {name}{where}.
Edit {name}{where}: use {value}.
Please put {value} as {name}{where}.
{name}{where} has to be {value}.
Adjust {name}{where} to {value}.
""".strip().splitlines()

SET_VERSION = """
We are about to publish {value}. Adjust the version.
Put {value} as the version.
Version {value}, please.
Raise the version number to {value}.
""".strip().splitlines()

REPLACE = """
There is "{old}" in {path}. Make that "{new}".
Swap "{old}" for "{new}" in {path}.
{path} says "{old}", but it has to say "{new}".
Edit {path} so that "{old}" becomes "{new}".
""".strip().splitlines()

APPEND = """
The last line of {path} should be "{line}". Add it.
At the bottom of {path}, add "{line}".
Write "{line}" after the last line of {path}.
""".strip().splitlines()

PREPEND = """
"{line}" has to be the first line of {path}. Add it.
Above all else in {path}, add "{line}".
""".strip().splitlines()

AFTER_LINE = """
Right after "{near}", {path} should say "{line}".
Place the line "{line}" directly below "{near}" in {path}.
""".strip().splitlines()

BEFORE_LINE = """
Right above "{near}", {path} should say "{line}".
Place the line "{line}" directly over "{near}" in {path}.
""".strip().splitlines()

ADD_SETTING = """
Give the section {section} of {path} the line "{line}".
I miss "{line}" in {section} of {path}.
""".strip().splitlines()

DELETE_LINE = """
Get "{line}" out of {path}.
{path} must lose the line "{line}".
""".strip().splitlines()

RENAME = """
All {old} in {path} should become {new}.
{path} uses {old}. Make it {new} all over the file.
""".strip().splitlines()

WRITE = """
I need a file {path} containing "{text}".
Put "{text}" into a file called {path}.
Could you create {path}? It should say "{text}".
Start a file {path} with the words "{text}".
""".strip().splitlines()

EACH = """
Ask one child about each of {paths}.
Send an agent to each of {paths} and tell me what they found.
Split {paths} among children, then report.
I want a child per file for {paths}: what is each about?
""".strip().splitlines()

EACH_IN = """
Send one child to every file in {folder} and give me their summaries.
For each file in {folder}, let a child tell me what it is about.
Split the files in {folder} among children and report on each.
Summaries of all the files in {folder}, please, one child each.
""".strip().splitlines()

BACKGROUND = """
Let background children read {paths}, and tell me once they are done.
Kick off background agents for {paths}, wait, and report.
While you wait, have {paths} summarised in the background.
""".strip().splitlines()

CHILD_SET = """
Get a child to make {name} {value} in {path}.
Tell an executor that {name} in {path} should be {value}.
Hand this to a child: in {path}, {name} becomes {value}.
""".strip().splitlines()

READ_AND_SET = """
Children should describe {paths}; one more should make {name} {value} in {path}.
Send children to {paths} for a summary, and let another change {name} to {value} in {path}.
""".strip().splitlines()

GREETING = ["Hi there", "Good evening", "Hello retinue", "Cheers"]
WHO = ["What are you good at?", "Tell me what you can do for me.", "What is your job?"]

OUTSIDE = """
Which team won the world cup in 2014?
Can you name three rivers in {place}?
What's a nice dish with {food}?
How long does light take from the sun to us?
Say something funny.
What is the square of {number}?
Which airline flies to {place}?
Who painted the Mona Lisa?
Do you like {topic}?
""".strip().splitlines()

COMMAND = """
Could you run the unit tests for me?
Does the build work?
Please execute {file}.
What did the last commit change?
Upload a release.
Get rid of {file}.
Start the development server and open it.
Who touched {file} last?
""".strip().splitlines()

WEB = """
Is there a newer release on the internet?
Find out online who maintains this.
Read https://docs.example.com/{word} for me.
""".strip().splitlines()

LARGE = """
I miss {feature}. Can you write that?
Our next milestone is {feature} for {part}. Start coding.
Teach {part} {feature}.
I'd like a plugin architecture for {part}. Build it.
Turn {part} into a microservice.
Make {part} support transactions across several databases.
Come up with a better design for {part} and implement it.
Get the test coverage of {part} to 95 percent.
Our users say {part} is unreliable. Find the cause and repair it.
Translate all of {file} to Go.
""".strip().splitlines()

NEXT_FILE = ["How about {path}?", "Then {path}, please.", "And the file {path}?"]
THAT_FILE = ["So what does this file do?", "What is in that file?"]
MAKE_IT = ["Hm, better set it to {value}.", "Rather {value}.", "Wait, make that {value}."]
ATTACHED = ["Give me the gist of it.", "What is this file for?", "One sentence about this, please."]

PARTS = [
    "the import pipeline", "the session handling", "the template engine", "the sync protocol",
    "the billing code", "the metrics",
]  # fmt: skip
LARGE_TASKS = ["Rework", "Speed up", "Make testable"]
TOPICS = ["opera", "volcanoes", "cricket", "old trains"]
FEATURES = ["a voice interface", "offline mode", "invoices", "an autocomplete", "SAML login"]
