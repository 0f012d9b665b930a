"""Writes prompts.txt beside itself: questions and tasks of many kinds, each about several subjects."""

import pathlib
import random

THINGS = """photosynthesis|gravity|the water cycle|volcanoes|the moon|black holes|magnets|rainbows|the human heart|vaccines|
bees|whales|dinosaurs|trees|coral reefs|penguins|dogs|cats|horses|spiders|bread|coffee|chocolate|cheese|pasta|apples|
football|chess|swimming|running|cycling|yoga|music|painting|photography|poetry|movies|dancing|pottery|gardening|
the internet|computers|databases|robots|smartphones|electric cars|airplanes|trains|ships|bridges|solar energy|
wind power|recycling|money|banks|inflation|taxes|insurance|democracy|elections|laws|schools|libraries|museums|hospitals|
friendship|patience|honesty|courage|teamwork|sleep|stress|memory|dreams|happiness|habits|time management|leadership|
Paris|Japan|Egypt|Brazil|the Amazon|the Sahara|the ocean|mountains|rivers|islands|winter|summer|rain|snow|storms""".replace("\n", "").split("|")

SUBJECT_TASKS = """What is {0}?|Explain {0} to a ten-year-old child.|Give me five facts about {0}.|Write a short paragraph about {0}.|
Why is {0} important?|List the advantages and disadvantages of {0}.|Write a short poem about {0}.|
Write a short story about {0}.|How has {0} changed over time?|Ask me three quiz questions about {0} and give the answers.|
Summarize what one should know about {0} in three sentences.|What are common misconceptions about {0}?|
Describe {0} in detail.|Suggest a title and an outline for an essay about {0}.|What would the world be like without {0}?|
Write an introduction for a blog post about {0}.""".replace("\n", "").split("|")

HOW_TO = """bake a cake|learn a new language|write a cover letter|prepare for a job interview|save money every month|
clean a kitchen|plan a birthday party|train a puppy|grow tomatoes|fix a flat tire|make a cup of tea|read faster|
start a small business|give a good speech|sleep better|build a bookshelf|pack for a trip|remember names|
stay healthy in winter|make new friends|cook rice|paint a room|study for an exam|learn to play the guitar|
organize a desk|reduce waste at home|start running|write a diary|choose a laptop|apologize to a friend""".replace("\n", "").split("|")

HOW_TO_TASKS = ["How do I {0}?", "Give me step-by-step instructions to {0}.", "What are the most common mistakes when people {0}?",
                "I want to {0} but I have little time. What do you suggest?", "Make a checklist to {0}."]

CODE = """reverses a string|checks whether a number is prime|computes the factorial of a number|sorts a list of numbers|
finds the largest number in a list|counts the words in a text|removes duplicates from a list|checks whether a word is a palindrome|
computes the Fibonacci numbers|converts Celsius to Fahrenheit|reads a file line by line|merges two sorted lists|
computes the average of a list|counts the vowels in a string|finds the common elements of two lists|
computes the greatest common divisor|generates a random password|adds up the digits of a number""".replace("\n", "").split("|")

CODE_TASKS = ["Write a Python function that {0}.", "Write a JavaScript function that {0} and explain it.",
              "Write a C++ function that {0}.", "Explain how a program that {0} works, with an example in Python."]

SENTENCES = """The meeting has been moved to Thursday because the manager is traveling.|
I am writing to you because I did not receive the package that I ordered two weeks ago.|
The weather was terrible, but we enjoyed the trip and want to go again next year.|
Our company offers a wide range of services for small and large customers.|
She opened the old door slowly and saw that the room behind it was full of books.|
The new phone has a better camera, a bigger battery and a lower price than the old one.|
He did not go to the party since he was tired and had to work early the next day.|
Many people think that learning mathematics is hard, but with practice everyone can do it.|
The city plans to build a new park with a lake, a playground and many trees.|
Please send us your application with a photo and your certificates before the end of May.""".replace("\n", "").split("|")

SENTENCE_TASKS = ["Rewrite this sentence to be more formal: {0}", "Rewrite this sentence in simpler words: {0}",
                  "Summarize this in a few words: {0}", "Correct any mistakes in this text: {0}",
                  "Turn this sentence into a question: {0}", "Continue this text with two more sentences: {0}",
                  "Write an email based on this sentence: {0}", "Is the tone of this sentence positive, negative or neutral? {0}"]

CHAT = """Hello!|Hi, how are you?|What can you do?|Tell me a joke.|Tell me something interesting.|I am bored. What should I do?|
I had a bad day.|Thank you for your help!|Can you recommend a good book?|What should I cook tonight?|
What is the capital of Italy?|What is the capital of Germany?|Who wrote Romeo and Juliet?|Who painted the Mona Lisa?|
What is 12 times 8?|If I have 15 apples and give away 6, how many are left?|A train travels 60 miles in an hour. How far does it travel in 3 hours?|
Name three primary colors.|Name ten animals.|Name five European countries.|How many days are there in a year?|
What is the largest planet in the solar system?|What is the fastest land animal?|What is the boiling point of water?|
Who was the first person on the moon?|When did the Second World War end?|What is the tallest mountain in the world?|
Write a haiku about autumn.|Write a birthday message for my mother.|Write a thank-you note to my teacher.|
Plan a three-day trip to Rome.|Plan a weekly workout.|Plan a healthy breakfast for a week.|
Write a dialogue between a customer and a waiter.|Write a dialogue between two old friends.|
Pretend to be a pirate and introduce yourself.|Give me ten ideas for a short film.|Give me names for a coffee shop.|
Write a product description for a wooden chair.|Write a job advertisement for a nurse.""".replace("\n", "").split("|")


def main():
    random.seed(1)
    prompts = [task.format(sentence) for sentence in SENTENCES for task in SENTENCE_TASKS]
    prompts += [task.format(code) for code in CODE for task in random.sample(CODE_TASKS, 3)]
    prompts += [task.format(goal) for goal in HOW_TO for task in random.sample(HOW_TO_TASKS, 3)]
    prompts += [task.format(thing) for thing in THINGS for task in random.sample(SUBJECT_TASKS, 5)]
    prompts += CHAT
    random.shuffle(prompts)
    pathlib.Path(__file__).with_name("prompts.txt").write_text("\n".join(prompts) + "\n")


main()
