// The syntax tree of a template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/jinja/value.h"

namespace smartkv::jinja {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Block = std::vector<std::unique_ptr<Stmt>>;

struct Expr {
  enum class Kind : uint8_t {
    kConstant,   // constant
    kName,       // name
    kList,       // children
    kTuple,      // children
    kDict,       // children: key, value, key, value, ...
    kAttribute,  // children[0] . name
    kItem,       // children[0] [ children[1] ]
    kSlice,      // children[0] [ children[1] : children[2] : children[3] ], each may be null
    kCall,       // children[0] ( children[1...], keywords, * unpacked_list, ** unpacked_dict )
    kFilter,     // children[0] | name ( children[1...], keywords )
    kTest,       // children[0] is name ( children[1...] )
    kUnary,      // name: "-", "+", "not"
    kBinary,     // name: the operator, "and" and "or" too
    kCompare,    // children[0] operators[0] children[1] operators[1] ...
    kCondition,  // children[0] if children[1] else children[2] (may be null)
  };
  Kind kind;
  int line;
  int depth = 0;  // of the tree below
  std::string name;
  Value constant;
  std::vector<ExprPtr> children;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  std::vector<std::string> operators;
  ExprPtr unpacked_list, unpacked_dict;  // null: none
};

struct Macro {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  bool takes_varargs = false, takes_kwargs = false;  // further arguments: the body reads the variables of these names
  Block body;
};

// Stands for a block's text in the filters that are applied to it; no name in a template.
inline constexpr const char* kFilterBody = "{% filter %}";

struct Stmt {
  enum class Kind : uint8_t {
    kText,      // text
    kPrint,     // expr
    kIf,        // branches, otherwise
    kFor,       // targets in expr [if condition]: body, otherwise
    kSet,       // targets (or text.attribute) = expr
    kSetBlock,  // targets = body, or expr of body as in kFilter
    kMacro,     // macro
    kFilter,    // expr of body: filters on the variable kFilterBody
    kBlock,     // body as it is ({% generation %})
    kBreak,
    kContinue,
  };
  Kind kind;
  int line;
  std::string text;
  std::string attribute;
  std::vector<std::string> targets;  // several: the value is unpacked
  ExprPtr expr, condition;
  Block body, otherwise;
  std::vector<std::pair<ExprPtr, Block>> branches;
  std::unique_ptr<Macro> macro;
};

// Throws ChatTemplateError naming line and construct: syntax, and what the interpreter does not have.
Block parse(std::string_view source);

}  // namespace smartkv::jinja
