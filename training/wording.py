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
Please put "{new}" for "{old}" in {path}.
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

PROJECT += """
I have two minutes. What is in this repository?
What have I cloned?
What does this software do for its users?
Explain the point of this package to a beginner.
What was this written for?
Which job does this program do?
Give me one sentence that says what this is.
What is the topic of this repository?
Is there a description of this project?
Tell a colleague what this library is for.
What should I know before I use this project?
What would I use this package for?
How can this project help me?
Who needs this, and why?
What do you see here? What is it for?
What is the task of this code?
Can you describe the project in this folder?
Characterise this project in one line.
What is its main purpose?
What am I working on here?
Your summary of this repository, please.
Which features does this project have?
What exactly is this?
About this repo: what is it?
""".strip().splitlines()

FILE += """
What is the task of {path}?
Which part does {path} have in this project?
What is {path} meant to do?
Could you describe what {path} does?
I found {path}. What does it do?
What are the contents of {path} about?
Is {path} important? What is it for?
Tell me in short what {path} has.
What kind of file is {path}?
What would you say {path} does?
What is the file {path} for?
In a few words: {path}.
Explain to me what happens inside {path}.
Which purpose does {path} serve?
Do you know what {path} does?
Say what {path} is there for.
How does {path} describe itself?
I have to change {path}. What does it do now?
What did the authors put into {path}?
Let me know what {path} does.
I need one sentence about {path}.
Somebody mentioned {path}. What is it?
Open {path} and explain it.
What is {path}, in simple words?
What is the subject of {path}?
We talk about {path}. What does it do?
{path}?
A short description of {path}, please.
What does {path} hold?
What do I get from {path}?
Which things does {path} deal with?
What is {path} all about?
Walk me through {path} in one sentence.
The file {path}: its purpose?
""".strip().splitlines()

FILES += """
Explain to me what {paths} do.
I need one sentence each about {paths}.
What is the job of {paths}?
How do {paths} differ?
Say in a few words what is in {paths}.
Give me one line for each of {paths}, without children.
What is in the files {paths}?
Go through {paths} and describe each.
Open {paths}. What do they do?
What are the files {paths} for?
Which of {paths} does what?
Please describe the purpose of {paths}.
""".strip().splitlines()

WHERE += """
Which file holds {name}?
What file is {name} in?
Where do I find the definition of {name}?
Do you see where {name} is defined?
I need the definition of {name}.
Where is {name} made?
Show the place of {name}.
In which part of the code is {name}?
Search {name}.
Where has {name} been defined?
I want to change {name}. Where is it?
Where is the source of {name}?
Please tell me which file {name} is in.
What is the location of {name} in this repo?
Which module defines {name}?
The code uses {name}. Where is that defined?
Find the line on which {name} is defined.
Somewhere there is {name}. Where?
Where would I edit {name}?
From which file comes {name}?
Name the file that has {name}.
{name}: which file?
I stumbled over {name}. In which file does it start?
Could you find {name}?
Is there a definition of {name}? Where?
""".strip().splitlines()

VALUE += """
Which value was given to {name}{where}?
How did we configure {name}{where}?
What number or word does {name} have{where}?
What stands behind {name}{where}?
How high is {name}{where}?
What does {name} contain{where}?
I would like to know the value of {name}{where}.
Can you look up {name}{where}?
Do we set {name}{where}? What is the value?
To what is {name} set{where}?
With which value is {name} defined{where}?
What is {name} at the moment{where}?
Name the value of {name}{where}.
Has {name} a value{where}? Which one?
{name}{where}?
Show the setting {name}{where}.
""".strip().splitlines()

VERSION += """
Which version have I got?
What number does this version have?
How new is this? I need the version number.
State the version.
What does the project say its version is?
Version?
Which version is installed from this folder?
Give me the version of this library.
""".strip().splitlines()

SET += """
Raise {name}{where} to {value}.
Reduce {name}{where} to {value}.
Lower {name} to {value}{where}.
Increase {name} to {value}{where}.
Initialise {name} with {value}{where}.
Define {name} as {value}{where}.
Override {name}{where} with {value}.
Reset {name} to {value}{where}.
Pin {name} to {value}{where}.
Fix {name}{where}: it should be {value}.
Replace the current {name}{where} by {value}.
Store {value} in {name}{where}.
Enter {value} for {name}{where}.
Make sure that {name} is {value}{where}.
See to it that {name} has the value {value}{where}.
The right {name}{where} is {value}.
{name} is wrong{where}. It should be {value}.
Our new {name}{where} is {value}.
Let's have {name} at {value}{where}.
I would like {name} to have the value {value}{where}.
{name} needs to be {value}{where}.
Bring {name} to {value}{where}.
Go to {value} for {name}{where}.
Apply {name} = {value}{where}.
{name}={value}{where}
{name} -> {value}{where}
Overwrite {name}{where} with the value {value}.
Choose {value} as the value of {name}{where}.
Can {name} be {value} from now on{where}?
Move {name}{where} up or down to {value}.
Take {value} for {name}{where}.
Do an edit{where}: {name} becomes {value}.
Change one setting{where}: {name} to {value}.
Type {value} where {name} is set{where}.
{name} has the wrong value{where}; write {value}.
It would be good to have {name} set to {value}{where}.
Put {name} to {value}{where}.
Tune {name} to {value}{where}.
Modify {name} so that its value is {value}{where}.
Have {name} equal {value}{where}.
""".strip().splitlines()

SET_VERSION += """
Call this version {value}.
The version must become {value}.
Increase the version to {value}.
Write {value} where the version is.
Go to version {value}.
Could you set the version to {value}?
New version: {value}.
Make a version {value}.
Let us call the next version {value}.
Change our version to {value}, we ship it.
version = {value}
Correct the version: it is {value}.
""".strip().splitlines()

REPLACE += """
{path}: replace "{old}" by "{new}".
Write "{new}" where {path} has "{old}".
Use "{new}" instead of "{old}" in {path}.
Where {path} says "{old}", write "{new}".
Exchange the words "{old}" in {path} for "{new}".
In {path} it says "{old}". It should say "{new}".
Please edit {path}: "{old}" must be "{new}".
I found "{old}" in {path}; that should be "{new}".
There is a mistake in {path}: "{old}" should be "{new}".
Take "{old}" out of {path} and put "{new}" there.
Let {path} say "{new}", not "{old}".
Modify the text "{old}" in {path} to "{new}".
Replace `{old}` with `{new}` in {path}.
In {path}, change `{old}` to `{new}`.
Replace the text '{old}' in {path} with '{new}'.
Change the words "{old}" of {path} to "{new}".
"{old}" in {path} is outdated: make it say "{new}".
Reword {path}: "{new}" for "{old}".
""".strip().splitlines()

APPEND += """
Append this line to {path}: {line}
Add a line to {path}: {line}
Add {line} at the end of {path}.
Append {line} to {path}
Add '{line}' to the end of {path}.
Append `{line}` to {path}.
Append the text "{line}" to the file {path}.
Put a new line at the end of {path} with the text "{line}".
{path} should end with "{line}".
{path} lacks a last line: "{line}".
At the very end of {path}, put "{line}".
At the end of {path} I want "{line}".
Below the last line of {path}, put "{line}".
Finish {path} with the line "{line}".
Complete {path} with "{line}" as its final line.
The end of {path} should be the line "{line}".
Let the final line of {path} be "{line}".
Go to the end of {path} and type "{line}".
Add one more line to {path}, namely "{line}".
Place "{line}" under everything else in {path}.
Make "{line}" the new end of {path}.
Could you append "{line}" to the file {path}?
Attach the line "{line}" to {path}.
Extend the file {path} at its end: "{line}".
Write one more line into {path}, at the end: "{line}"
The file {path} needs "{line}" as its last line.
Enlarge {path} by one line, "{line}".
Add an entry "{line}" to {path}.
Add the entry "{line}" at the bottom of the file {path}.
""".strip().splitlines()

PREPEND = """
Put "{line}" at the top of {path}.
Add the line "{line}" at the beginning of {path}.
Insert "{line}" as the first line of {path}.
Let {path} begin with "{line}".
Start {path} with the line "{line}".
Prepend "{line}" to {path}.
Add "{line}" before everything else in {path}.
The first line of {path} should be "{line}". Insert it.
{path} needs a first line "{line}".
Write "{line}" at the start of {path}.
At the top of {path}, add "{line}".
Add this as the first line of {path}: {line}
""".strip().splitlines()

AFTER_LINE = """
Add the line "{line}" after "{near}" in {path}.
In {path}, insert "{line}" after "{near}".
Insert "{line}" below "{near}" in {path}.
Put "{line}" under the line "{near}" in {path}.
In {path}, add "{line}" after the line "{near}".
After "{near}" in {path}, add the line "{line}".
Below "{near}", {path} needs the line "{line}".
{path}: put "{line}" behind the line "{near}".
Write "{line}" under "{near}" in {path}.
The line "{near}" in {path} should be followed by "{line}".
Let "{line}" follow "{near}" in {path}.
Insert the line `{line}` after `{near}` in {path}.
Append "{line}" to the line "{near}" of {path}, as a line of its own.
""".strip().splitlines()

BEFORE_LINE = """
Add the line "{line}" before "{near}" in {path}.
In {path}, insert "{line}" before "{near}".
Insert "{line}" above "{near}" in {path}.
Put "{line}" over the line "{near}" in {path}.
Before "{near}" in {path}, add the line "{line}".
Above "{near}", {path} needs the line "{line}".
Write "{line}" above "{near}" in {path}.
The line "{near}" in {path} should come after a new line "{line}".
Insert the line `{line}` before `{near}` in {path}.
""".strip().splitlines()

ADD_SETTING = """
Add "{line}" to the section {section} of {path}.
In {path}, add "{line}" to {section}.
Put "{line}" into the section {section} of {path}.
{path} needs "{line}" in the section {section}.
Add the setting {line} to {section} in {path}.
The section {section} of {path} should have "{line}" too.
Extend the section {section} in {path} by "{line}".
Insert "{line}" under {section} in {path}.
Add {line} in {path} in the section {section}.
""".strip().splitlines()

DELETE_LINE = """
Delete the line "{line}" from {path}.
Remove the line "{line}" from {path}.
Remove "{line}" from {path}.
Delete "{line}" in {path}.
In {path}, delete the line "{line}".
Take the line "{line}" out of {path}.
{path} should not have the line "{line}". Remove it.
Drop the line "{line}" from {path}.
We do not need "{line}" in {path}. Delete it.
The line "{line}" in {path} is not needed. Remove it.
Strike "{line}" from {path}.
Erase the line `{line}` in {path}.
""".strip().splitlines()

RENAME = """
Rename {old} to {new} in {path}.
In {path}, rename {old} to {new}.
Rename `{old}` to `{new}` in {path}.
Rename "{old}" to "{new}" everywhere in {path}.
Replace every "{old}" with "{new}" in {path}.
Replace all occurrences of {old} with {new} in {path}.
Change all {old} to {new} in {path}.
Change {old} to {new} everywhere in {path}.
Call {old} {new} instead, everywhere in {path}.
In {path}, every {old} must be {new}.
Give {old} the name {new} in {path}.
{old} should be called {new} in {path}.
Wherever {path} says {old}, write {new}.
Use the name {new} for {old} in {path}.
""".strip().splitlines()

WRITE += """
Create the file {path}: {text}
New file {path}: "{text}".
Create {path} containing {text}
Please create a text file {path} which says "{text}".
I need "{text}" written to the new file {path}.
Begin a new file {path}, with "{text}" as its only line.
Add a file. Name: {path}. Content: "{text}".
The folder needs a file {path} with "{text}".
Write {path} with "{text}" as its content.
Leave a note in {path}: "{text}".
Can you save a file {path} that holds "{text}"?
Put a file {path} here with the line "{text}".
Create '{path}' with the content '{text}'.
Let a new file {path} say "{text}".
Fill a new file {path} with "{text}".
""".strip().splitlines()

EACH += """
What does each of {paths} do? Use one child for each.
Give every one of {paths} to a child and list what they say.
Spawn one researcher for each of {paths}.
Parallelise: a child for each of {paths}, then a summary.
Children should read {paths}. What is in each?
For each of {paths}, start a child that describes it.
Please have {paths} described by one child each.
Use several agents: one for each of {paths}. What do they find?
Delegate each of {paths} to its own child.
Tell children to read {paths}, one file each, and list the results.
I want {paths} summarised by separate agents.
Create a child per file for {paths} and report on each.
Put a child on each of {paths}.
Let {paths} be summarised by children, each by its own.
""".strip().splitlines()

EACH_IN += """
Delegate: one child for each file in {folder}.
What is in each file of {folder}? Use children.
Put a child on each file in {folder} and list what they find.
Every file in {folder} gets a child. What do they say?
Spawn children for the files in {folder} and summarise.
Start a researcher for each file in {folder} and collect the answers.
Let children describe the files in {folder}.
List what each file in {folder} is about, with one child per file.
The folder {folder}: a child for each file, then their summaries.
Give each file in {folder} to an agent of its own.
Please summarise each of the files in {folder}.
Summarise {folder} file by file.
""".strip().splitlines()

BACKGROUND += """
Start {paths} as background jobs, one child each, and wait for the reports.
In the background, let a child read each of {paths}; then collect the results.
Children in the background should summarise {paths}. Wait for them.
Use background children for {paths} and give me their answers at the end.
Do it in the background: a child for each of {paths}, then a report.
Begin background work on {paths} and report the results.
""".strip().splitlines()

CHILD_SET += """
Tell a child to set {name} to {value} in {path}.
A child should change {name} to {value} in {path}.
Leave it to a child: {name} in {path} is to be {value}.
Give it to an executor: set {name} to {value} in {path}.
Let a sub-agent edit {path}: {name} = {value}.
Start an executor that sets {name} in {path} to {value}.
Through a child, change {name} in {path} to {value}.
Please let another agent set {name} to {value} in {path}.
Send an executor to {path}: {name} is to be {value}.
""".strip().splitlines()

READ_AND_SET += """
Start children: one for each of {paths} to summarise it, one to set {name} to {value} in {path}.
Let {paths} be described by children. In {path}, a child sets {name} to {value}.
Delegate two things: summaries of {paths}, and the change of {name} to {value} in {path}.
Children for {paths}, one each, and an executor that makes {name} = {value} in {path}.
One child per file describes {paths}, and one child changes {name} in {path} to {value}.
""".strip().splitlines()

LARGE += """
Add {feature}.
Add {feature}
Add {feature} to {part}.
Add {feature} to this project.
Implement {feature}.
Implement {feature} for {part}.
Build {feature}.
Build {feature} into {part}.
Introduce {feature}.
Integrate {feature}.
Integrate {feature} into {file}.
Support {feature}.
{part} needs {feature}.
We need {feature}. Add it.
We want {feature} in {part}.
Extend {part} with {feature}.
Make {part} use {feature}.
Create {feature} from scratch.
Develop {feature} and test it.
Put {feature} into {part}.
Set up {feature}.
Enable {feature} everywhere.
Give {part} {feature}.
Plan and implement {feature}.
Switch {part} to {feature}.
Provide {feature} for our users.
Users ask for {feature}. Please do it.
Finish {feature}, it is half done.
{part} crashes. Fix it.
{part} is too slow. Make it faster.
{part} has a bug. Find it and mend it.
{part} fails now and then. Why? Fix the reason.
Something in {part} is broken. Repair it.
Customers complain about {part}. Improve it.
{part} loses data under load. Solve that.
{part} uses too much memory. Reduce that.
The tests of {part} fail. Mend the code.
Why does {part} hang? Debug and fix it.
Turn {file} into a package.
Turn this into a web service.
Rewrite {file} in C.
Rewrite {file} so that it is faster.
Make {file} thread-safe.
Make {file} easier to read.
Simplify {file}.
Split {file} into smaller modules.
Add tests to {file}.
Add docstrings to all functions in {file}.
Refactor the functions in {file}.
Find the bugs in {file} and fix them.
Review {file} and improve it.
Write a new version of {file}.
Convert {part} to a service of its own.
Replace {part} by something better.
Make {part} work on Windows and on phones.
Bring the coverage of the tests to a good level.
Upgrade all dependencies and repair what breaks.
Design an interface for {topic} and write the code.
Write a compiler for a small language.
Write code that reads {word} files and draws charts.
Write a function that computes the shortest path.
Write a class for {word} with all methods.
Program a chess engine.
Create a mobile app of this.
""".strip().splitlines()

FEATURES = """
user accounts
sign-in with a token
OAuth
single sign-on
two-factor authentication
password reset by mail
roles and permissions
an audit log
rate limits
a rate limiter
caching
a cache with Redis
retries with backoff
a circuit breaker
full text search
pagination
sorting and filters
an export to Excel
an import from CSV
PDF reports
mail notifications
push notifications
webhooks
a REST API
a GraphQL API
a gRPC interface
WebSockets
streaming
async support
multithreading
GPU support
a job queue
a scheduler
background workers
a plugin system
a theme editor
a dark theme
a settings page
an admin page
a dashboard with charts
a command line interface
a graphical interface
drag and drop
an undo function
translations
support for several languages
a payment system
a shopping cart
encryption
TLS
backups
database migrations
a new database
sharding
replication
Kubernetes support
a Docker image
continuous integration
metrics and tracing
structured logs
crash reports
feature flags
type checks
benchmarks
fuzz tests
end-to-end tests
a test suite
machine learning
a recommendation engine
image recognition
a chat bot
maps
a calendar
time zones
""".strip().splitlines()

OUTSIDE += """
Give me advice about {topic}.
What is new about {topic}?
Who invented {food}?
How much is {number} plus {number2}?
What is the largest city of {place}?
Which currency is used in {place}?
Is it going to rain in {place}?
Tell me something about {place}.
Which is better, {food} or bread?
How many calories has {food}?
Tell me a story.
Sing a song.
Play a game with me.
Are you a human?
What do you feel?
Which film should I see?
Who is the richest person?
When is the next holiday?
How do I get to {place}?
What does a ticket to {place} cost?
What happened in {place} in 1990?
Name a famous person from {place}.
How big is the sun?
How many legs has a spider?
What is {number} percent of {number2}?
Translate "thank you" into Spanish.
Write a letter to my landlord.
What should I eat tonight?
""".strip().splitlines()

COMMAND += """
Run the unit tests of this project and tell me the result.
Start the tests.
Are all tests green?
Does it compile?
Can this be built?
Execute make.
Run the linter.
Call {file} with some arguments.
Try {file} out.
Start {file}.
Profile {file}.
Install this package.
Update the packages.
Publish the package.
Upload the new version.
Tag a release.
Push the branch.
Undo the last commit.
Show the last five commits.
Which files changed since the last release?
Who worked on {file}?
Who has changed {file} most?
What is the history of {file}?
Throw {file} away.
Please delete {file} for me.
I do not need {file} any more. Delete it.
Rename the file {file}.
Make a backup of {file} in another folder.
Zip this project.
Start a debugger.
Open {file} in my editor.
Show me a picture of the page.
Stop the server.
How much memory does it need when it runs?
How fast is it? Measure it.
""".strip().splitlines()

WEB += """
Go to https://www.example.net/{word} and tell me what it says.
Is this the latest version? Look on the web.
Find the maintainers on the web.
Search online for {topic}.
Download {word} data.
Ask the internet.
Find a tutorial about this project on the web.
What does the documentation on the web say?
Is there news about this project?
Which bugs are reported on the web?
""".strip().splitlines()

PARTS += """
the checkout
the report generator
the mail sender
the crawler
the compiler
the installer
the import of files
the export
the dashboard
the authentication
the permissions
the chat
the image processing
the core
the backend
the frontend
the client
the server
""".strip().splitlines()

# Put behind questions and commands.
AFTER = [
    " Thanks!", " Thank you.", " Be brief.", " One sentence is enough.", " Nothing else.",
    " I need it soon.", " That is all.", " Keep it short.", " I am in a hurry.", " OK?",
]  # fmt: skip
BEFORE_QUESTIONS += [
    "I am new here. ", "We have a review tomorrow. ", "For a talk: ", "I am lost. ", "Quickly: ",
    "Sorry to ask: ", "A colleague asks: ", "Before I start: ", "I cleaned up a bit. ", "Hm. ",
]  # fmt: skip
BEFORE_COMMANDS += [
    "Kindly ", "I need you to ", "Be so kind and ", "For the release, ", "One more thing: ",
    "Now please ", "As a next step, ", "A small job: ", "I would like you to ", "Task: ",
]  # fmt: skip
