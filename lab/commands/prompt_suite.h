// The fixed prompts of run-suite and train-probe: code, an interface and a grid. They are short enough to run often.
#pragma once

#include <array>
#include <string_view>

namespace smartkv {

struct SuitePrompt {
  std::string_view name, text;
};

inline constexpr std::array<SuitePrompt, 3> kPromptSuite = {{
    {"merge_sort",
     "Write merge sort in Python. Explain each step of the algorithm first, then give the whole program with type "
     "hints and comments, then trace it on the list [38, 27, 43, 3, 9, 82, 10] and say what it costs in time and "
     "memory."},
    {"bst_api",
     "Design the API of a binary search tree in C++: insert, erase, find, in-order iteration, minimum and maximum. "
     "Give the class with a comment for each member, then the code of insert and erase, then three examples of how it "
     "is used."},
    {"sudoku",
     "Here is a Sudoku grid, 0 for an empty cell:\n5 3 0 0 7 0 0 0 0\n6 0 0 1 9 5 0 0 0\n0 9 8 0 0 0 0 6 0\n8 0 0 0 6 "
     "0 0 0 3\n"
     "4 0 0 8 0 3 0 0 1\n7 0 0 0 2 0 0 0 6\n0 6 0 0 0 0 2 8 0\n0 0 0 4 1 9 0 0 5\n0 0 0 0 8 0 0 7 9\n"
     "Explain how to solve it by elimination, cell by cell, and print the finished grid."},
}};

}  // namespace smartkv
