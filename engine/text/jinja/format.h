// Python's printf-style formatting of strings: "%s is %d" % values.
#pragma once

#include <string>

#include "engine/text/jinja/builtins.h"

namespace smartkv::jinja {

// format % values. Conversions s, r, d, i, u, x, X, o, e, E, f, F, g, G and %, with flags, width and precision; a
// dictionary serves %(name)s. `markup`: of a format that is Markup, which escapes what %s and %r put in. RuntimeError where
// Python raises, and for what is not supported.
std::string format_percent(const std::string& format, const Value& values, Environment& environment, bool markup = false);

}  // namespace smartkv::jinja
