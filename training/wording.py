"""How people ask, by kind of task. `evaluation/wording.py` has other words for the same kinds."""

PROJECT = """
What does this project do?
What is this project?
What is this repository about?
Tell me what this repo is for.
Summarise this project in one sentence.
Give me a short summary of the project.
Explain what this code base does.
what is this
What am I looking at?
Describe this project.
What is the purpose of this repository?
I just cloned this. What is it?
What kind of software is this?
What is the goal of this project?
What is the aim of this code?
Which need does this software cover?
What can I do with this package?
Who would use this project, and for what?
Introduce this project to me.
Say in a few words what this repository offers.
What does the code in here do overall?
I am new here. What is this project about?
Somebody sent me this folder. What is it?
Give an overview of the project.
How would you describe this library?
Is this a library or a program? What does it do?
What is this repo good for?
What is the idea behind this project?
What's the main feature of this package?
In short: what is this?
I have never seen this code. Explain it in a sentence.
Why would I want this package?
What do I get when I install this?
State the purpose of the project.
Sum up this repository.
Pitch this project to me.
What is the use of all this?
Which problem is solved here?
Write one sentence about this project.
""".strip().splitlines()

FILE = """
What does {path} do?
What is in {path}?
Summarise {path}.
In one sentence: what is {path} for?
Explain {path} briefly.
Look at {path} and say what it does.
What is {path} about?
Describe {path}.
Give me a summary of {path}
Read {path} and tell me its purpose.
What's the point of {path}?
Tell me about {path}.
What does {path} do? Answer in one sentence.
What does {path} say?
{path}: what is it for?
What is the job of {path}?
What does the file {path} contain?
What can be found in {path}?
What role does {path} play?
Why is {path} there?
What is the content of {path}?
Have a look at {path}. What does it do?
I opened {path}. What is going on in there?
Which functions or topics are in {path}?
Please check {path} and describe it.
Give a one-line description of {path}.
Tell me briefly about {path}.
I do not understand {path}. What is it for?
What is {path} used for?
What should I know about {path}?
Outline {path}.
Which task does {path} have?
State the purpose of {path}.
Show me what {path} is about.
What is defined in {path}?
What is written in {path}?
How would you describe {path}?
What do we need {path} for?
""".strip().splitlines()

FILES = """
What do {paths} do?
What is in {paths}?
Tell me about {paths}.
Read {paths} and say what they do.
Explain {paths}.
What are {paths} about?
Summarise {paths}.
What is the purpose of {paths}?
Describe {paths}.
What do {paths} contain?
What is the difference between {paths}?
Have a look at {paths} and tell me what they do.
Which roles do {paths} play?
""".strip().splitlines()

WHERE = """
Where is {name} defined?
Which file defines {name}?
Find the definition of {name}.
Where can I find {name}?
Where does {name} come from?
In which file is {name}?
Show me where {name} is defined.
Locate {name}.
Which line defines {name}?
where is {name}
Find {name} for me.
In what module is {name} declared?
Where is {name} declared?
Which file has the definition of {name}?
Where is {name} implemented in this project?
Find out where {name} is.
Look up where {name} is defined.
In which file and line is {name}?
I am searching for {name}. Where is it?
Where is the code of {name}?
Give me the location of {name}.
Which source file contains {name}?
Where does this project define {name}?
I cannot find {name}. Where is it?
Help me find {name}.
Where should I look for {name}?
On which line does {name} start?
Where was {name} put?
Tell me where {name} is.
Take me to {name}.
What is the path of the file that defines {name}?
Search for the definition of {name}.
Can you locate {name} in the code?
Who defines {name}?
Where is the class or function {name}?
""".strip().splitlines()

GLOB = """
Which files match {glob}?
List the files that fit {glob}.
Find {glob}.
Find all files like {glob}.
Show files matching {glob}
Which files are matched by {glob}?
Are there files like {glob}?
Give me a list of {glob}.
Search for files named {glob}.
""".strip().splitlines()

KIND = """
Which {kind} files are there?
Find all {kind} files.
List the {kind} files of this project.
Show me every {kind} file.
What {kind} files does it have?
Does this project have {kind} files?
Where can I find {kind} files?
Name the {kind} files.
Which files are {kind} files?
I need a list of all {kind} files.
""".strip().splitlines()

NAMED = """
Find the file {file}.
Where is the file {file}?
Is there a file {file}?
Which folder has {file}?
Locate {file}.
Where can I find {file}?
In which folder is {file}?
Do you see a file named {file}?
Which path has the file {file}?
Does {file} exist in this project?
Search for a file with the name {file}.
""".strip().splitlines()

FOLDER = """
What is in {folder}?
List {folder}.
What files are in the folder {folder}?
Show me the content of {folder}.
Which files does {folder} have?
ls {folder}
What does {folder} contain?
Which files and folders are in {folder}?
Show {folder}.
What is inside {folder}?
Tell me what is in {folder}.
List the directory {folder}.
Open the folder {folder} and list its files.
What is stored in {folder}?
I want to see the files of {folder}.
""".strip().splitlines()

VALUE = """
What is {name} set to?
What is the value of {name}?
What value does {name} have?
How large is {name}?
Which value has {name}{where}?
What is {name}{where}?
Look up {name}{where}.
Tell me the value of {name}{where}.
What does {name} default to?
What is the current value of {name}{where}?
How is {name} set{where}?
What have we set {name} to{where}?
Which setting does {name} have{where}?
Check the value of {name}{where}.
What does {name} equal{where}?
Find the value of {name}{where}.
Give me {name}{where}.
Read {name}{where} for me.
What is assigned to {name}{where}?
How much is {name}{where}?
Show me what {name} is{where}.
Is {name} set{where}? To what?
""".strip().splitlines()

VERSION = """
What version is this?
Which version is it?
What is the current version?
What version does this project have?
Tell me the version number.
Which version number does it carry?
What is the version?
What version are we on?
Which version is in the project file?
Look up the version.
Show me the version of this project.
Is there a version number? Which?
""".strip().splitlines()

SET = """
Set {name} to {value}{where}.
Change {name} to {value}{where}.
Set {name} = {value}{where}.
Make {name} {value}{where}.
Please set {name} to {value}{where}
Update {name}{where}: the new value is {value}.
{name} should be {value}{where}.
Let {name} be {value}{where}.
Change the value of {name}{where} to {value}.
I want {name} to be {value}{where}.
Set the value of {name} to {value}{where}.
Put {value} into {name}{where}.
Give {name} the value {value}{where}.
Modify {name}{where} to be {value}.
Switch {name} to {value}{where}.
Write {value} as the value of {name}{where}.
{name} must be {value}{where}.
The value of {name}{where} should be {value}.
Edit {name}{where} to {value}.
We need {name} to be {value}{where}.
Configure {name} as {value}{where}.
Let us use {value} for {name}{where}.
Use {value} for {name}{where}.
Turn {name}{where} into {value}.
{name}{where}: set it to {value}.
Replace the value of {name}{where} by {value}.
Correct {name}{where} to {value}.
I need {name} = {value}{where}.
Could you make {name} equal to {value}{where}?
From now on, {name} is {value}{where}.
""".strip().splitlines()

SET_VERSION = """
Set the version to {value}.
Bump the version to {value}.
Change the version number to {value}.
Release {value}: update the version.
Make this version {value}.
Update the version to {value}
The version should be {value}.
Set the version number to {value}.
Change the version of this project to {value}.
We release {value} today. Update the version.
Let the version be {value}.
I want version {value}.
Our next version is {value}. Set it.
Move to version {value}.
Upgrade the version to {value}.
Write {value} as the version number.
The next release is {value}, so change the version.
Prepare version {value}.
Edit the version so that it is {value}.
Mark this as version {value}.
""".strip().splitlines()

REPLACE = """
Replace "{old}" with "{new}" in {path}.
In {path}, change "{old}" to "{new}".
Change "{old}" to "{new}" in {path}.
In {path}, replace '{old}' by '{new}'.
{path}: "{old}" should read "{new}".
Substitute "{new}" for "{old}" in {path}.
Fix {path}: write "{new}" instead of "{old}".
Turn "{old}" into "{new}" in {path}.
Rewrite "{old}" as "{new}" in {path}.
In {path}, "{old}" must become "{new}".
Edit {path}: replace "{old}" with "{new}".
The text "{old}" in {path} is wrong. It should be "{new}".
Find "{old}" in {path} and replace it with "{new}".
Correct "{old}" to "{new}" in {path}.
In the file {path}, put "{new}" where it says "{old}".
Exchange "{old}" for "{new}" in {path}.
I want "{new}" instead of "{old}" in {path}.
{path} has "{old}". Change that to "{new}".
Update {path}: "{old}" is now "{new}".
Please rename "{old}" to "{new}" in {path}.
""".strip().splitlines()

APPEND = """
Add the line "{line}" to {path}.
Append "{line}" to {path}.
Put "{line}" at the end of {path}.
Add "{line}" as the last line of {path}.
Extend {path} by the line "{line}".
Add a last line "{line}" to {path}.
Insert "{line}" at the end of {path}.
Let {path} end with the line "{line}".
Attach "{line}" to the end of the file {path}.
{path} needs one more line at the end: "{line}".
After everything else in {path}, add "{line}".
Write the line "{line}" at the end of {path}.
Put one more line into {path}: "{line}".
I want "{line}" as a new last line in {path}.
""".strip().splitlines()

WRITE = """
Create {path} with the text "{text}".
Write "{text}" into a new file {path}.
Make a file {path} that says "{text}".
Create a file named {path}. Its content is "{text}".
Add a new file {path} with "{text}" in it.
Save "{text}" as {path}.
Write a file {path} with the content "{text}".
Make me a file {path}. It should contain "{text}".
I want a new file {path} with "{text}".
We need the file {path}; put "{text}" in it.
There should be a file {path} that says "{text}".
Store the text "{text}" in {path}.
Set up a file {path} whose content is "{text}".
Generate the file {path} with "{text}" as its text.
Let there be a file {path} with the line "{text}".
Write down "{text}" in {path}.
A file named {path} with the text "{text}", please.
Would you make the file {path} with the words "{text}"?
Produce {path}; it holds "{text}".
Open a new file {path} and write "{text}".
Please note "{text}" in a file called {path}.
{path} does not exist yet. Create it with "{text}".
I would like to have {path} containing the text "{text}".
Keep "{text}" in a new file named {path}.
""".strip().splitlines()

EACH = """
Summarise each of {paths}.
Have children look at {paths}.
Say what each of {paths} does, one child per file.
Delegate: summarise {paths}.
Let a child read each of {paths} and report.
One child per file: what do {paths} do?
Spawn children to summarise {paths}.
Use sub-agents to describe {paths}.
Give {paths} to one agent each and collect their summaries.
Let one child summarise each of {paths}.
Assign a child to each of {paths} and summarise.
Use one sub-agent for each of {paths} and tell me what they are about.
Hand {paths} to children, one each, and collect the answers.
What is each of {paths} about? Ask children.
Distribute {paths} over children.
Each of {paths} should be read by a child. Report what they say.
Have an agent describe each of these: {paths}.
Let researchers look at {paths}, one per file.
I want a summary of {paths}, made by children.
Run a child on each of {paths}.
Divide {paths} between several children and summarise.
""".strip().splitlines()

EACH_IN = """
Summarise each file in {folder}.
Summarise every file in {folder}.
Have a child read each file in {folder}.
One child per file: summarise {folder}.
Delegate the files of {folder} to children and collect the summaries.
What does each file in {folder} say? Use one child per file.
Describe every file in the folder {folder}.
Go through {folder} with one agent per file.
Summarise all files in {folder}.
Summarise the files in {folder}, one child per file.
Have children go through every file in {folder}.
Let one child look at each file in {folder}.
Each file in {folder} should be read by a child.
Use sub-agents to summarise the files in {folder}.
Assign a child to every file of {folder} and report.
Give a summary of each file in {folder}.
Distribute the files in {folder} over children.
I want one summary per file of {folder}.
Run a child on every file of {folder}.
Tell me about each file in {folder}, using children.
""".strip().splitlines()

BACKGROUND = """
In the background, summarise {paths}, then report.
Start a background child for each of {paths} and wait for them.
Run children in the background for {paths} and collect what they say.
Look at {paths} with background agents.
Summarise {paths} in the background.
Send background children to {paths} and collect their reports.
Have {paths} read in the background, then tell me the result.
Spawn background children for {paths}, then wait and report.
Use background jobs to summarise {paths}.
Let children work on {paths} in the background. Then say what they found.
Start jobs in the background for {paths}; report when they are ready.
""".strip().splitlines()

CHILD_SET = """
Have a child set {name} to {value} in {path}.
Let an executor set {name} to {value} in {path}.
Delegate this edit: {name} = {value} in {path}.
Spawn a child that changes {name} to {value} in {path}.
Ask a child to set {name} in {path} to {value}.
Let a child change {name} to {value} in {path}.
Use a child to set {name} to {value} in {path}.
An executor should set {name} to {value} in {path}.
Give a child the task to set {name} to {value} in {path}.
Spawn an executor: {name} in {path} becomes {value}.
Let somebody else do it: a child sets {name} in {path} to {value}.
I want a child to set {name} to {value} in {path}.
Delegate to a child: set {name} to {value} in {path}.
Have an agent edit {path} so that {name} is {value}.
Assign a child to update {name} to {value} in {path}.
Order a child to change {name} in {path} to {value}.
""".strip().splitlines()

READ_AND_SET = """
Have children summarise {paths}, and another one set {name} to {value} in {path}.
One child per file: summarise {paths}. A further child sets {name} to {value} in {path}.
Delegate: describe {paths}; set {name} to {value} in {path}.
Let children look at {paths} and set {name} to {value} in {path}.
Let one child per file summarise {paths}, and an executor set {name} to {value} in {path}.
Use children: summaries of {paths}, and {name} set to {value} in {path}.
Have {paths} summarised by children while one child sets {name} to {value} in {path}.
Spawn a child for each of {paths} to describe it, and one that changes {name} to {value} in {path}.
Ask children what {paths} do, and let a child set {name} in {path} to {value}.
""".strip().splitlines()

GREETING = """
Hello
Hi!
Hey there
Good morning
Thanks
Thank you!
ok
""".strip().splitlines()

WHO = """
Who are you?
What can you do?
What are you able to do?
Help
How can you help me?
What tasks can I give you?
""".strip().splitlines()

OUTSIDE = """
What is the capital of {place}?
What is the weather in {place}?
Who won the last election in {place}?
How do I cook {food}?
Tell me a joke about {food}.
What time is it?
Write a poem about {food}.
What is {number} times {number2}?
How tall is the highest mountain of {place}?
Translate "good evening" into the language of {place}.
Recommend a film.
What will the stock market do tomorrow?
""".strip().splitlines()

COMMAND = """
Run the tests.
Execute the test suite.
Do the tests pass?
Install the dependencies.
Run {file}.
Build the project.
Start the server.
Deploy this.
Commit the changes.
Push this to the remote.
Which commit was the last one?
Who wrote {file}?
Show the git log.
Run pytest.
Delete {file}.
Remove the file {file}.
Rename {file} to old_{base}.
Move {file} to another folder.
Benchmark it.
Format the code.
""".strip().splitlines()

WEB = """
Download the newest release from the web.
Search the web for {place}.
Open https://example.org/{word} and summarise it.
What do people on the internet say about this project?
Check online whether there is a newer version.
Fetch the page of this project.
""".strip().splitlines()

LARGE = """
Implement a login with OAuth.
Rewrite this project in Rust.
Refactor {file} to use async.
Add a web interface.
Write tests for {file}.
Fix all bugs.
Add type hints everywhere.
Make it twice as fast.
Port {file} to TypeScript.
Add support for plugins.
Write a parser for {word} files.
Implement caching in {file}.
Find and fix the memory leak.
Migrate the database to Postgres.
Write the documentation.
Review the architecture and improve it.
Debug why the server crashes under load.
Implement {name} with a better algorithm.
""".strip().splitlines()

NEXT_FILE = """
And {path}?
What about {path}?
And what does {path} do?
Now {path}.
Same for {path}
Next: {path}.
{path} too, please.
What about the file {path}?
Okay, and {path}?
Also {path}.
""".strip().splitlines()

THAT_FILE = """
What does that file do?
And what is that file for?
Summarise that file.
What is this file about?
""".strip().splitlines()

MAKE_IT = """
Make it {value} instead.
No, {value}.
Change it to {value}.
Actually, set it to {value}.
Sorry, it should be {value}.
Better: {value}.
Set it to {value} after all.
On second thought, {value}.
Please use {value} instead.
It has to be {value}.
""".strip().splitlines()

ATTACHED = """
What does this do?
Summarise this file.
What is this about?
In one sentence, what is attached?
Describe the attached file.
Summarise it in one sentence.
What is in the attachment?
Explain this.
What do you make of this file?
Tell me what this file does.
Please summarise the attachment.
Describe this.
""".strip().splitlines()

PARTS = """
the parser
the tests
the database layer
the command line
the error handling
the cache
the login
the API
the whole code base
this module
the user interface
the scheduler
the network code
the configuration
the build
the documentation
the logging
the retry logic
the data model
the search
the plugin system
the payment flow
the message queue
the file upload
the websocket server
the type checker
the renderer
""".strip().splitlines()
LARGE_TASKS = """
Rewrite
Refactor
Redesign
Optimise
Modernise
Reimplement
Port
Parallelise
Vectorise
Split up
Simplify
Clean up
Extend
Generalise
Harden
Profile
Debug
Review
Audit
Restructure
Migrate
Replace
Test thoroughly
Write unit tests for
Fix every bug in
Add error handling to
Add logging to
Document all of
Improve
Build a new version of
Design a better architecture for
Find the race condition in
Make faster
""".strip().splitlines()
TOPICS = """
the history of Rome
football
quantum physics
the best phone
my horoscope
the price of gold
black holes
the meaning of life
a good restaurant
the football results
my taxes
a birthday present
the human heart
how to lose weight
the news of today
the stock market
dinosaurs
jazz
chess openings
gardening
a headache
the population of China
the inventor of the telephone
train connections to Rome
the moon
dog breeds
""".strip().splitlines()
LARGE += """
{task} {part}.
{task} {part}
{task} {part} and {part}.
I need you to {task} {part}.
We should {task} {part}. Do it.
Build a feature for {topic}.
Create a web application about {topic}.
Develop a new module that handles {word} events.
Solve all open issues.
Code a game.
Write a program that sorts {word} records by date and mails a report.
Implement a REST endpoint for {word}.
Convert {file} into a class hierarchy.
Why is {part} so slow? Fix it.
""".strip().splitlines()
OUTSIDE += """
What do you know about {topic}?
Tell me about {topic}.
Explain {topic}.
Who is the president of {place}?
How far is it from {place} to the moon?
Where is {place}?
What language do they speak in {place}?
Write me a song about {topic}.
Give me a recipe for {food}.
How many people live in {place}?
What do you think of {food}?
Plan a trip to {place}.
When was {place} founded?
How old are you?
What day is it today?
Convert {number} miles to kilometres.
Is {number} a prime number?
Write an email to my boss.
What is the square root of {number}?
Can you recommend a book about {topic}?
""".strip().splitlines()
COMMAND += """
Check whether everything passes.
Compile the project.
Make a release on the package index.
Open a pull request.
Merge the branch.
Create a branch named {word}.
What changed in the last commit?
Who is the author of {file}?
When was {file} last changed?
How long do the tests take?
Execute {file} and show the output.
Restart the service.
Print the environment variables.
Which Python version is installed?
Kill the process on port {number}.
Lint {file}.
Delete the folder of {base}.
Copy {file} to my desktop.
Make {file} executable.
""".strip().splitlines()
WEB += """
Look up {topic} on Wikipedia.
Google {topic}.
Which version is the newest on the package index?
Read the issue tracker of this project.
How many stars has this project?
Visit the home page and tell me what is new.
""".strip().splitlines()

# Put before questions and before commands, so that the model does not depend on the first word.
BEFORE_QUESTIONS = [
    "Hey, ",
    "Hello, ",
    "Question: ",
    "I wonder: ",
    "One thing: ",
    "Tell me, ",
    "Just curious: ",
    "Help me out: ",
    "Hi! ",
    "So, ",
    "And: ",
    "Listen, ",
    "OK. ",
    "Right. ",
    "",
]
BEFORE_COMMANDS = [
    "Please ",
    "Could you ",
    "Would you ",
    "Can you ",
    "Now ",
    "Next, ",
    "Go and ",
    "I want you to ",
    "I'd like you to ",
    "You should ",
    "Hey, ",
    "Then ",
    "First, ",
    "",
]
