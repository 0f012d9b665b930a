#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <set>

#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/lexer.h"

namespace smartkv::jinja {
namespace {

constexpr int kMaxNesting = 200;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) { collect_callables(); }

  Block run() {
    Block block = parse_block({});
    refuse_unknown(0);
    if (peek().kind != Token::Kind::kEnd) fail("unexpected " + shown(peek()));
    return block;
  }

 private:
  // Limits the nesting of the source, which protects the stack.
  struct Depth {
    explicit Depth(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMaxNesting) parser_.fail("nested more than " + std::to_string(kMaxNesting) + " deep");
    }
    ~Depth() { --parser_.depth_; }
    Parser& parser_;
  };

  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  const Token& next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  [[noreturn]] void fail(const std::string& message) const { fail_at(peek().line, message); }
  static std::string shown(const Token& token) {
    switch (token.kind) {
      case Token::Kind::kEnd: return "end of the template";
      case Token::Kind::kEndBlock: return "%}";
      case Token::Kind::kEndPrint: return "}}";
      default: return "\"" + token.text.substr(0, 40) + "\"";
    }
  }
  bool is(const char* text) const {
    return (peek().kind == Token::Kind::kOperator || peek().kind == Token::Kind::kName) && peek().text == text;
  }
  bool accept(const char* text) {
    if (!is(text)) return false;
    next();
    return true;
  }
  // Returns the one of `texts` that was accepted, or nullptr.
  const char* accept_one(std::initializer_list<const char*> texts) {
    const auto found = std::find_if(texts.begin(), texts.end(), [this](const char* text) { return accept(text); });
    return found == texts.end() ? nullptr : *found;
  }
  void expect(const char* text) {
    if (!accept(text)) fail(std::string("expected \"") + text + "\", found " + shown(peek()));
  }
  void expect(Token::Kind kind, const char* what) {
    if (peek().kind != kind) fail(std::string("expected ") + what + ", found " + shown(peek()));
    next();
  }
  std::string name() {
    if (peek().kind != Token::Kind::kName) fail("expected a name, found " + shown(peek()));
    return next().text;
  }

  // Collects the names that the template may call: macros, and variables that are set.
  void collect_callables() {
    for (size_t i = 0; i + 1 < tokens_.size(); ++i) {
      if (tokens_[i].kind == Token::Kind::kName && (tokens_[i].text == "macro" || tokens_[i].text == "set") &&
          tokens_[i + 1].kind == Token::Kind::kName) {
        callables_.insert(tokens_[i + 1].text);
      }
    }
  }

  // --- statements ---

  // Parses up to a block that begins with one of `ends`, and leaves that block to the caller. At the top level, where
  // `ends` is empty, parses up to the end of the template.
  Block parse_block(const std::set<std::string>& ends) {
    const Depth depth(*this);
    Block block;
    for (;;) {
      const Token& token = peek();
      if (token.kind == Token::Kind::kEnd) {
        if (!ends.empty()) fail("expected {% " + *ends.begin() + " %}, found end of the template");
        return block;
      }
      if (token.kind == Token::Kind::kText) {
        block.push_back(statement(Stmt::Kind::kText));
        block.back()->text = next().text;
      } else if (token.kind == Token::Kind::kBeginPrint) {
        next();
        block.push_back(statement(Stmt::Kind::kPrint));
        block.back()->expr = parse_tuple();
        expect(Token::Kind::kEndPrint, "}}");
      } else {
        if (peek(1).kind == Token::Kind::kName && ends.contains(peek(1).text)) return block;
        next();
        block.push_back(parse_statement());
      }
    }
  }

  std::unique_ptr<Stmt> statement(Stmt::Kind kind) const {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = peek().line;
    return stmt;
  }
  void end_block() { expect(Token::Kind::kEndBlock, "%}"); }
  void closing(const char* keyword) {
    next();  // {%
    expect(keyword);
    end_block();
  }

  std::unique_ptr<Stmt> parse_statement() {
    const std::string keyword = name();
    if (keyword == "if") return parse_if();
    if (keyword == "for") return parse_for();
    if (keyword == "set") return parse_set();
    if (keyword == "macro") return parse_macro();
    if (keyword == "filter") return parse_filter_block();
    if (keyword == "generation") {
      auto stmt = statement(Stmt::Kind::kBlock);
      end_block();
      stmt->body = parse_outside_loops("endgeneration");
      return stmt;
    }
    if (keyword == "break" || keyword == "continue") {
      if (loops_ == 0) fail(keyword + " outside of a loop");
      auto stmt = statement(keyword == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue);
      end_block();
      return stmt;
    }
    --at_;
    fail("unknown tag \"" + keyword + "\"");
  }

  // Parses a body that {% break %} cannot leave.
  Block parse_outside_loops(const char* end) {
    const int loops = std::exchange(loops_, 0);
    Block body = parse_strict({end});
    loops_ = loops;
    closing(end);
    return body;
  }

  // An unknown filter or test. jinja2 reports these when it loads a template, except directly under a condition, which
  // may guard them. There it fails only when it evaluates one.
  struct Unknown {
    int line;
    std::string fault;
  };
  void refuse_unknown(size_t first) const {
    if (first < unknown_.size()) fail_at(unknown_[first].line, unknown_[first].fault);
  }
  void forgive_unknown(size_t first) { unknown_.resize(first); }
  // Parses a body that does not count as directly under a condition.
  Block parse_strict(const std::set<std::string>& ends) {
    const size_t first = unknown_.size();
    Block body = parse_block(ends);
    refuse_unknown(first);
    return body;
  }

  std::unique_ptr<Stmt> parse_filter_block() {
    auto stmt = statement(Stmt::Kind::kFilter);
    stmt->expr = parse_filter(node(Expr::Kind::kName, kFilterBody));
    while (accept("|")) stmt->expr = parse_filter(std::move(stmt->expr));
    end_block();
    stmt->body = parse_strict({"endfilter"});
    closing("endfilter");
    return stmt;
  }

  std::unique_ptr<Stmt> parse_if() {
    const size_t unknown = unknown_.size();
    auto stmt = statement(Stmt::Kind::kIf);
    for (;;) {
      ExprPtr condition = parse_tuple();
      end_block();
      stmt->branches.emplace_back(std::move(condition), parse_block({"elif", "else", "endif"}));
      next();  // {%
      if (accept("elif")) continue;
      if (accept("else")) {
        end_block();
        stmt->otherwise = parse_block({"endif"});
        next();
      }
      expect("endif");
      end_block();
      forgive_unknown(unknown);
      return stmt;
    }
  }

  std::vector<std::string> parse_targets() {
    const bool open = accept("(");
    std::vector<std::string> targets = {name()};
    while (accept(",")) targets.push_back(name());
    if (open) expect(")");
    return targets;
  }

  std::unique_ptr<Stmt> parse_for() {
    auto stmt = statement(Stmt::Kind::kFor);
    stmt->targets = parse_targets();
    expect("in");
    stmt->expr = parse_tuple(false);
    if (accept("if")) stmt->condition = parse_expression();
    if (is("recursive")) fail("recursive loops are not supported");
    end_block();
    ++loops_;
    stmt->body = parse_strict({"else", "endfor"});
    --loops_;
    next();
    if (accept("else")) {
      end_block();
      stmt->otherwise = parse_strict({"endfor"});
      next();
    }
    expect("endfor");
    end_block();
    return stmt;
  }

  std::unique_ptr<Stmt> parse_set() {
    auto stmt = statement(Stmt::Kind::kSet);
    if (peek().kind == Token::Kind::kName && peek(1).text == "." && peek(1).kind == Token::Kind::kOperator) {
      stmt->text = name();
      next();
      stmt->attribute = name();
    } else {
      stmt->targets = parse_targets();
    }
    if (accept("=")) {
      stmt->expr = parse_tuple();
      end_block();
      return stmt;
    }
    if (is("|")) stmt->expr = node(Expr::Kind::kName, kFilterBody);
    while (accept("|")) stmt->expr = parse_filter(std::move(stmt->expr));
    stmt->kind = Stmt::Kind::kSetBlock;
    end_block();
    stmt->body = parse_strict({"endset"});
    closing("endset");
    return stmt;
  }

  std::unique_ptr<Stmt> parse_macro() {
    auto stmt = statement(Stmt::Kind::kMacro);
    stmt->macro = std::make_unique<Macro>();
    stmt->macro->name = name();
    expect("(");
    while (!accept(")")) {
      stmt->macro->parameters.push_back(name());
      if (accept("=")) {
        stmt->macro->defaults.push_back(parse_expression());
      } else if (!stmt->macro->defaults.empty()) {
        fail("a parameter without a default follows one with a default");
      }
      if (!is(")")) expect(",");
    }
    end_block();
    const size_t first = at_;
    stmt->macro->body = parse_outside_loops("endmacro");
    const auto reads = [&](const char* variable) {
      const auto& parameters = stmt->macro->parameters;
      if (std::find(parameters.begin(), parameters.end(), variable) != parameters.end()) return false;
      return std::any_of(
          tokens_.begin() + static_cast<ptrdiff_t>(first), tokens_.begin() + static_cast<ptrdiff_t>(at_),
          [&](const Token& token) { return token.kind == Token::Kind::kName && token.text == variable; });
    };
    stmt->macro->takes_varargs = reads("varargs");
    stmt->macro->takes_kwargs = reads("kwargs");
    return stmt;
  }

  // --- expressions ---

  ExprPtr node(Expr::Kind kind, std::string text = "") const {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = peek().line;
    expr->name = std::move(text);
    return expr;
  }
  // Updates the depth of `parent` for a new child, and returns the child. Long chains ("a + b + c + ...") are deep
  // trees without deep nesting in the source, so the depth is limited here.
  ExprPtr adopt(Expr& parent, ExprPtr child) const {
    if (child != nullptr) parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > kMaxNesting)
      fail("an expression is more than " + std::to_string(kMaxNesting) + " operations deep");
    return child;
  }
  template <typename... Children>
  ExprPtr node_of(Expr::Kind kind, std::string text, Children... children) const {
    ExprPtr expr = node(kind, std::move(text));
    (expr->children.push_back(adopt(*expr, std::move(children))), ...);
    return expr;
  }
  void add(ExprPtr& parent, ExprPtr child) const { parent->children.push_back(adopt(*parent, std::move(child))); }

  // Parses an expression. Several with commas between them are a tuple.
  ExprPtr parse_tuple(bool with_condition = true) {
    const auto one = [&] { return with_condition ? parse_expression() : parse_or(); };
    ExprPtr first = one();
    if (!is(",")) return first;
    ExprPtr tuple = node_of(Expr::Kind::kTuple, "", std::move(first));
    while (accept(",")) {
      if (peek().kind == Token::Kind::kEndBlock || peek().kind == Token::Kind::kEndPrint || is(")")) break;
      add(tuple, one());
    }
    return tuple;
  }

  ExprPtr parse_expression() {
    const Depth depth(*this);
    const size_t unknown = unknown_.size();
    ExprPtr value = parse_or();
    while (accept("if")) {
      ExprPtr condition = parse_or();
      ExprPtr otherwise = accept("else") ? parse_expression() : nullptr;
      forgive_unknown(unknown);
      value = node_of(Expr::Kind::kCondition, "", std::move(value), std::move(condition), std::move(otherwise));
    }
    return value;
  }
  // Parses operands that left-associative operators join.
  template <typename Operand>
  ExprPtr parse_chain(std::initializer_list<const char*> operators, const Operand& parse_operand) {
    ExprPtr left = parse_operand();
    while (const char* op = accept_one(operators)) {
      left = node_of(Expr::Kind::kBinary, op, std::move(left), parse_operand());
    }
    return left;
  }
  ExprPtr parse_or() {
    const auto parse_and = [this] { return parse_chain({"and"}, [this] { return parse_not(); }); };
    return parse_chain({"or"}, parse_and);
  }
  ExprPtr parse_not() {
    const Depth depth(*this);
    if (is("not") && !(peek(1).kind == Token::Kind::kName && peek(1).text == "in")) {
      next();
      return node_of(Expr::Kind::kUnary, "not", parse_not());
    }
    return parse_compare();
  }
  ExprPtr parse_compare() {
    ExprPtr left = parse_sum();
    ExprPtr chain;
    for (;;) {
      const char* op = accept_one({"==", "!=", "<=", ">=", "<", ">", "in"});
      if (op == nullptr && is("not") && peek(1).text == "in" && peek(1).kind == Token::Kind::kName) {
        next();
        next();
        op = "not in";
      }
      if (op == nullptr) return chain != nullptr ? std::move(chain) : std::move(left);
      if (chain == nullptr) chain = node_of(Expr::Kind::kCompare, "", std::move(left));
      chain->operators.push_back(op);
      add(chain, parse_sum());
    }
  }
  ExprPtr parse_sum() {
    const auto parse_power = [this] { return parse_chain({"**"}, [this] { return parse_unary(true); }); };
    const auto parse_product = [&] { return parse_chain({"*", "//", "/", "%"}, parse_power); };
    const auto parse_concat = [&] { return parse_chain({"~"}, parse_product); };
    return parse_chain({"+", "-"}, parse_concat);
  }
  ExprPtr parse_unary(bool with_filter) {
    const Depth depth(*this);
    const char* sign = accept_one({"-", "+"});
    ExprPtr value = sign != nullptr ? node_of(Expr::Kind::kUnary, sign, parse_unary(false)) : parse_primary();
    value = parse_postfix(std::move(value));
    return with_filter ? parse_filters(std::move(value)) : std::move(value);
  }

  ExprPtr parse_primary() {
    const Token token = peek();
    ExprPtr value = node(Expr::Kind::kConstant);
    switch (token.kind) {
      case Token::Kind::kName:
        next();
        if (token.text == "true" || token.text == "True") {
          value->constant = true;
        } else if (token.text == "false" || token.text == "False") {
          value->constant = false;
        } else if (token.text != "none" && token.text != "None") {
          value->kind = Expr::Kind::kName;
          value->name = token.text;
        }
        return value;
      case Token::Kind::kString: {
        std::string text;
        while (peek().kind == Token::Kind::kString) text += next().text;
        value->constant = std::move(text);
        return value;
      }
      case Token::Kind::kInteger: {
        int64_t number = 0;
        if (std::from_chars(token.text.data(), token.text.data() + token.text.size(), number).ec != std::errc()) {
          fail("the number " + token.text + " is out of range");
        }
        next();
        value->constant = number;
        return value;
      }
      case Token::Kind::kFloat:
        next();
        value->constant = std::strtod(token.text.c_str(), nullptr);
        return value;
      default: break;
    }
    if (accept("(")) {
      if (accept(")")) return node(Expr::Kind::kTuple);
      ExprPtr inner = parse_tuple();
      expect(")");
      return inner;
    }
    if (accept("[")) {
      ExprPtr list = node(Expr::Kind::kList);
      while (!accept("]")) {
        add(list, parse_expression());
        if (!is("]")) expect(",");
      }
      return list;
    }
    if (accept("{")) {
      ExprPtr dict = node(Expr::Kind::kDict);
      while (!accept("}")) {
        add(dict, parse_expression());
        expect(":");
        add(dict, parse_expression());
        if (!is("}")) expect(",");
      }
      return dict;
    }
    fail("unexpected " + shown(token));
  }

  ExprPtr parse_postfix(ExprPtr value) {
    for (;;) {
      if (accept(".")) {
        if (peek().kind == Token::Kind::kInteger) {
          ExprPtr index = parse_primary();
          value = node_of(Expr::Kind::kItem, "", std::move(value), std::move(index));
        } else {
          const std::string attribute = name();
          value = node_of(Expr::Kind::kAttribute, attribute, std::move(value));
        }
      } else if (accept("[")) {
        value = parse_subscript(std::move(value));
      } else if (is("(")) {
        value = parse_call(std::move(value));
      } else {
        return value;
      }
    }
  }

  ExprPtr parse_subscript(ExprPtr value) {
    ExprPtr parts[3];
    int n = 0;
    bool slice = false;
    for (;;) {
      if (is("]")) break;
      if (accept(":")) {
        slice = true;
        if (++n > 2) fail("a slice has at most three parts");
        continue;
      }
      if (parts[n] != nullptr) fail("expected \"]\", found " + shown(peek()));
      parts[n] = parse_expression();
    }
    expect("]");
    if (slice)
      return node_of(Expr::Kind::kSlice, "", std::move(value), std::move(parts[0]), std::move(parts[1]),
                     std::move(parts[2]));
    if (parts[0] == nullptr) fail("expected an index, found \"]\"");
    return node_of(Expr::Kind::kItem, "", std::move(value), std::move(parts[0]));
  }

  void parse_arguments(ExprPtr& call) {
    expect("(");
    while (!accept(")")) {
      if (is("*") || is("**")) {
        parse_unpacking(call);
      } else if (peek().kind == Token::Kind::kName && peek(1).kind == Token::Kind::kOperator && peek(1).text == "=") {
        std::string keyword = name();
        next();
        call->keywords.emplace_back(std::move(keyword), adopt(*call, parse_expression()));
      } else {
        if (!call->keywords.empty() || call->unpacked_list != nullptr)
          fail("a positional argument follows a keyword argument");
        add(call, parse_expression());
      }
      if (!is(")")) expect(",");
    }
  }

  // Parses "*list" or "**dictionary" among the arguments. Only functions and macros support it, because the arguments
  // of methods, filters and tests are checked while parsing.
  void parse_unpacking(ExprPtr& call) {
    const bool is_call = call->kind == Expr::Kind::kCall && call->children[0]->kind == Expr::Kind::kName;
    if (!is_call) fail("argument unpacking is supported for functions and macros only");
    ExprPtr& unpacked = is("*") ? call->unpacked_list : call->unpacked_dict;
    if (unpacked != nullptr || call->unpacked_dict != nullptr) fail("expected \")\", found " + shown(peek()));
    next();
    unpacked = adopt(*call, parse_expression());
  }

  static CallShape shape_of(const Expr& call) {
    CallShape shape;
    shape.positional = call.children.size() - 1;
    for (size_t i = 1; i < call.children.size(); ++i) {
      const std::string* text = call.children[i]->constant.as<std::string>();
      shape.constants.push_back(text == nullptr ? std::nullopt : std::optional(*text));
    }
    for (const auto& [keyword, value] : call.keywords) shape.keywords.push_back(keyword);
    return shape;
  }
  // Throws for the fault of a call. If the filter or test is not known, a condition may still guard it.
  void require(const Expr& call, const std::optional<std::string>& fault, bool known = true) {
    if (fault && known) fail_at(call.line, *fault);
    if (fault) unknown_.push_back({call.line, *fault});
  }

  ExprPtr parse_call(ExprPtr callee) {
    const std::string name = callee->name;
    const bool is_name = callee->kind == Expr::Kind::kName, is_attribute = callee->kind == Expr::Kind::kAttribute;
    if (is_name && !callables_.contains(name) && !is_function(name)) fail("unknown function \"" + name + "\"");
    ExprPtr call = node_of(Expr::Kind::kCall, "", std::move(callee));
    parse_arguments(call);
    if (is_attribute) require(*call, check_method(name, shape_of(*call)));
    const bool unpacks = call->unpacked_list != nullptr || call->unpacked_dict != nullptr;
    if (is_name && !callables_.contains(name) && !unpacks) require(*call, check_function(name, shape_of(*call)));
    return call;
  }

  ExprPtr parse_filter(ExprPtr value) {
    const std::string filter = name();
    value = node_of(Expr::Kind::kFilter, filter, std::move(value));
    if (is("(")) parse_arguments(value);
    require(*value, check_filter(filter, shape_of(*value)), is_filter(filter));
    return value;
  }

  ExprPtr parse_filters(ExprPtr value) {
    for (;;) {
      if (accept("|")) {
        value = parse_filter(std::move(value));
      } else if (accept("is")) {
        const bool negated = accept("not");
        const bool symbol = is("==") || is("!=") || is("<") || is(">") || is("<=") || is(">=");
        const std::string test = symbol ? next().text : name();
        value = node_of(Expr::Kind::kTest, test, std::move(value));
        if (is("(")) {
          parse_arguments(value);
        } else if (begins_argument()) {
          add(value, parse_postfix(parse_primary()));
        }
        require(*value, check_test(test, shape_of(*value)), is_test(test));
        if (negated) value = node_of(Expr::Kind::kUnary, "not", std::move(value));
      } else if (is("(")) {
        value = parse_call(std::move(value));
      } else {
        return value;
      }
    }
  }

  // Returns whether the next token begins the argument of a test without parentheses: "x is divisibleby 3".
  bool begins_argument() const {
    const Token& token = peek();
    if (token.kind == Token::Kind::kName) {
      return token.text != "and" && token.text != "or" && token.text != "else" && token.text != "if" &&
             token.text != "is" && token.text != "not" && token.text != "in";
    }
    return token.kind == Token::Kind::kString || token.kind == Token::Kind::kInteger ||
           token.kind == Token::Kind::kFloat || is("[") || is("{");
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
  std::set<std::string> callables_;
  std::vector<Unknown> unknown_;  // Filters and tests for which no guarding condition has been found yet.
};

}  // namespace

Block parse(std::string_view source) { return Parser(source).run(); }

}  // namespace smartkv::jinja
