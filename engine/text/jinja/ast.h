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

// An expression. Each kind lists the fields that it uses.
struct Expr {
  enum class Kind : uint8_t {
    kConstant,   // constant
    kName,       // name
    kList,       // children
    kTuple,      // children
    kDict,       // children: key, value, key, value, ...
    kAttribute,  // children[0] . name
    kItem,       // children[0] [ children[1] ]
    kSlice,      // children[0] [ children[1] : children[2] : children[3] ]; children[1] to [3] may be null
    kCall,       // children[0] ( children[1...], keywords, * unpacked_list, ** unpacked_dict )
    kFilter,     // children[0] | name ( children[1...], keywords )
    kTest,       // children[0] is name ( children[1...] )
    kUnary,      // name: "-", "+", "not"
    kBinary,     // name: the operator, including "and" and "or"
    kCompare,    // children[0] operators[0] children[1] operators[1] ...
    kCondition,  // children[0] if children[1] else children[2]; children[2] may be null
  };
  Kind kind;
  int line;
  int depth = 0;  // Depth of the tree below this expression.
  std::string name;
  Value constant;
  std::vector<ExprPtr> children;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  std::vector<std::string> operators;
  ExprPtr unpacked_list, unpacked_dict;  // Null if there is none.
};

struct Macro {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExprPtr> defaults;  // Default values of the last parameters.
  // The macro takes further arguments, because its body reads the variables "varargs" or "kwargs".
  bool takes_varargs = false, takes_kwargs = false;
  Block body;
};

// The variable that holds the text of a block while filters are applied to it. A template cannot use this name.
inline constexpr const char* kFilterBody = "{% filter %}";

// A statement. Each kind lists the fields that it uses.
struct Stmt {
  enum class Kind : uint8_t {
    kText,      // text
    kPrint,     // expr
    kIf,        // branches, otherwise
    kFor,       // targets in expr [if condition]: body, otherwise
    kSet,       // targets (or text.attribute) = expr
    kSetBlock,  // targets = body; with filters, targets = expr, as in kFilter
    kMacro,     // macro
    kFilter,    // expr: filters applied to the variable kFilterBody, which holds the text of body
    kBlock,     // body, unchanged ({% generation %})
    kBreak,
    kContinue,
  };
  Kind kind;
  int line;
  std::string text;
  std::string attribute;
  std::vector<std::string> targets;  // If there are several, the value is unpacked.
  ExprPtr expr, condition;
  Block body, otherwise;
  std::vector<std::pair<ExprPtr, Block>> branches;
  std::unique_ptr<Macro> macro;
};

// Parses a template. Throws ChatTemplateError naming line and construct for a syntax error, and for constructs that the
// interpreter does not support.
Block parse(std::string_view source);

}  // namespace smartkv::jinja
