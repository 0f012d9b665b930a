// Python's printf-style formatting of strings: "%s is %d" % values.
#pragma once

#include <string>

#include "engine/text/jinja/builtins.h"

namespace smartkv::jinja {

// Returns `format % values`. Supports the conversions s, r, d, i, u, x, X, o, e, E, f, F, g, G and %, with flags, width
// and precision, and %(name)s with a dictionary. markup: the format is Markup, so that values inserted by %s and %r are
// escaped. Throws RuntimeError where Python raises an exception, and for unsupported conversions.
std::string format_percent(const std::string& format, const Value& values, Environment& environment,
                           bool markup = false);

}  // namespace smartkv::jinja
