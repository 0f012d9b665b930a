#include "server/commands/line_editor.h"

#include <histedit.h>
#include <termios.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <iostream>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace smartkv {
namespace {

// Sequences that a terminal sends before and after a paste, once kMarkPastes was written to it.
constexpr const wchar_t* kPasteBegin = L"\033[200~";
constexpr std::wstring_view kPasteEnd = L"\033[201~";
constexpr const char *kMarkPastes = "\033[?2004h", *kMarkNoPastes = "\033[?2004l";
constexpr int kHistory = 1000;

// Sets the user's locale, or C.UTF-8 if that one has no multibyte characters. The editor decodes its input by the
// locale.
void use_utf8() {
  const char* const own = std::setlocale(LC_CTYPE, "");
  if (own == nullptr || MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
}

// While the object lives, the terminal sends Ctrl-C as a character and not as a signal.
class InterruptKey {
 public:
  InterruptKey() : known_(::tcgetattr(STDIN_FILENO, &before_) == 0) {
    if (!known_) return;
    termios changed = before_;
    changed.c_cc[VINTR] = _POSIX_VDISABLE;
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &changed);
  }
  ~InterruptKey() {
    if (known_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
  }
  InterruptKey(const InterruptKey&) = delete;
  InterruptKey& operator=(const InterruptKey&) = delete;

 private:
  termios before_;
  bool known_;
};

}  // namespace

struct LineEditor::Terminal {
  explicit Terminal(std::string text) : prompt(std::move(text)) {
    use_utf8();
    screen = ::isatty(STDOUT_FILENO) != 0 ? stdout : stderr;
    edit.reset(::el_init("smartkv", stdin, screen, stderr));
    if (edit == nullptr) throw std::runtime_error("the terminal's lines cannot be edited");
    ::el_set(edit.get(), EL_CLIENTDATA, this);
    ::el_set(
        edit.get(), EL_PROMPT, +[](EditLine* of) { return self(of).prompt.data(); });
    ::el_set(edit.get(), EL_EDITOR, "emacs");
    HistEvent event;
    ::history(history.get(), &event, H_SETSIZE, kHistory);
    ::history(history.get(), &event, H_SETUNIQUE, 1);
    ::el_set(edit.get(), EL_HIST, &::history, history.get());
    ::el_wset(edit.get(), EL_ADDFN, L"smartkv-interrupt", L"Drop the line", &interrupt);
    ::el_wset(edit.get(), EL_ADDFN, L"smartkv-paste", L"Insert a paste", &paste);
    ::el_wset(edit.get(), EL_BIND, L"^C", L"smartkv-interrupt", nullptr);
    ::el_wset(edit.get(), EL_BIND, kPasteBegin, L"smartkv-paste", nullptr);
  }

  static Terminal& self(EditLine* edit) {
    void* data = nullptr;
    ::el_get(edit, EL_CLIENTDATA, &data);
    return *static_cast<Terminal*>(data);
  }

  static unsigned char interrupt(EditLine* edit, wint_t) {
    self(edit).interrupted = true;
    return CC_NEWLINE;
  }

  // Inserts a paste into the line. Its line breaks become characters of the line.
  static unsigned char paste(EditLine* edit, wint_t) {
    std::wstring text;
    wchar_t character = 0;
    while (!text.ends_with(kPasteEnd)) {
      if (::el_wgetc(edit, &character) != 1) return CC_EOF;
      if (character == L'\n' && text.ends_with(L'\r')) text.pop_back();
      text += character;
    }
    text.resize(text.size() - kPasteEnd.size());
    for (wchar_t& c : text) c = c == L'\r' ? L'\n' : c;
    std::erase(text, L'\0');
    return text.empty() || ::el_winsertstr(edit, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  Input read(std::string* text) {
    interrupted = false;
    const InterruptKey key;
    ::el_resize(edit.get());
    std::fputs(kMarkPastes, screen);
    std::fflush(screen);
    int bytes = 0;
    const char* const line = ::el_gets(edit.get(), &bytes);
    std::fputs(kMarkNoPastes, screen);
    if (interrupted || line == nullptr || bytes <= 0) std::fputc('\n', screen);
    std::fflush(screen);
    if (interrupted) return Input::kInterrupt;
    if (line == nullptr || bytes <= 0) return Input::kEnd;
    text->assign(line, static_cast<size_t>(bytes));
    if (text->ends_with('\n')) text->pop_back();
    HistEvent event;
    if (!text->empty()) ::history(history.get(), &event, H_ENTER, text->c_str());
    return Input::kText;
  }

  std::string prompt;
  FILE* screen = nullptr;
  bool interrupted = false;
  std::unique_ptr<History, decltype(&::history_end)> history{::history_init(), &::history_end};
  std::unique_ptr<EditLine, decltype(&::el_end)> edit{nullptr, &::el_end};
};

LineEditor::LineEditor(std::string prompt) {
  if (::isatty(STDIN_FILENO) != 0) terminal_ = std::make_unique<Terminal>(std::move(prompt));
}

LineEditor::~LineEditor() = default;

LineEditor::Input LineEditor::read(std::string* text) {
  if (terminal_ != nullptr) return terminal_->read(text);
  return std::getline(std::cin, *text) ? Input::kText : Input::kEnd;
}

}  // namespace smartkv
