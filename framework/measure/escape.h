// The one place where text becomes part of a report, a plot or a trace. Names in them come from
// files (classes, runs, ops of a model), so all of it is hostile until it has passed here.
#pragma once

#include <string>
#include <string_view>

namespace penstock::measure {

enum class Syntax {
  kMarkup,  // HTML and SVG: text and quoted attributes
  kJson,    // inside a JSON string, safe within a <script> or a page too
};

// `text` as valid UTF-8 with every character that means something in `syntax` written out. Broken
// sequences and characters that could reorder or hide text (bidirectional controls, control
// characters) become U+FFFD; in JSON the C0 controls become \u00XX. At most `limit` bytes of the
// input are used, ending in an ellipsis when it was longer.
std::string escape(std::string_view text, Syntax syntax, std::size_t limit = 4096);

}  // namespace penstock::measure
