#include "framework/io/config_yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "framework/io/files.h"
#include "framework/io/json_utf8.h"

namespace penstock::io::yaml {
namespace {

// Characters that cannot be seen, that some readers take for the end of a line, or that show the
// rest of the line in another order than it is read.
bool is_hidden(char32_t c) {
  return (c >= 0x80 && c <= 0xA0) || c == 0xAD || c == 0x61C || (c >= 0x2000 && c <= 0x200F) ||
         (c >= 0x2028 && c <= 0x202F) || (c >= 0x205F && c <= 0x206F) || c == 0x3000 ||
         c == 0xFEFF || (c >= 0xFFF0 && c <= 0xFFFB) || (c & 0xFFFE) == 0xFFFE || c >= 0xE0000;
}

std::string hex_text(char32_t c) {
  std::string digits;
  for (; c != 0; c >>= 4) {
    digits.insert(digits.begin(), "0123456789ABCDEF"[c & 15]);
  }
  return digits;
}

// The lines of a file, for places and for comparing values with what stands there.
class Source {
 public:
  Source(std::string text, const std::string& name) : text_(std::move(text)), name_(name) {
    starts_.push_back(0);
    for (std::size_t i = 0; i < text_.size(); ++i) {
      if (text_[i] == '\n') {
        starts_.push_back(i + 1);
      }
    }
  }
  const std::string& text() const { return text_; }

  // From a mark to the end of its line. Marks count bytes.
  std::string_view rest(const YAML::Mark& mark) const {
    const std::size_t line = std::min(std::size_t(std::max(mark.line, 0)), starts_.size() - 1);
    const std::size_t end = line + 1 < starts_.size() ? starts_[line + 1] - 1 : text_.size();
    const std::size_t at = std::min(starts_[line] + std::size_t(std::max(mark.column, 0)), end);
    return std::string_view(text_).substr(at, end - at);
  }
  Place place(const YAML::Mark& mark) const {
    std::size_t at = std::size_t(rest(mark).data() - text_.data());
    while (at > 0 && at < text_.size() && (static_cast<unsigned char>(text_[at]) & 0xC0) == 0x80) {
      --at;  // inside a character
    }
    const auto line = std::upper_bound(starts_.begin(), starts_.end(), at) - starts_.begin();
    // On from the place before where it can: a line may hold all values of the file.
    if (line != last_.line || at < last_at_) {
      last_ = {name_, int(line), 1};
      last_at_ = starts_[std::size_t(line) - 1];
    }
    for (; last_at_ < at; ++last_at_) {
      last_.column += (static_cast<unsigned char>(text_[last_at_]) & 0xC0) != 0x80 ? 1 : 0;
    }
    return last_;
  }
  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& message) const {
    fail_at(place(mark), message);
  }

 private:
  std::string text_;
  std::string name_;
  std::vector<std::size_t> starts_;
  mutable Place last_;
  mutable std::size_t last_at_ = 0;
};

constexpr const char* kNoAnchors =
    "anchors (&) and aliases (*) are not used in configurations; write the value out, or put text "
    "that "
    "begins so in quotes";
constexpr const char* kNoTags =
    "tags (!) are not used in configurations; every key has its type already; put text that begins "
    "so in "
    "quotes";

// Builds the tree from parse events, so that limits hold before anything has grown.
class Builder : public YAML::EventHandler {
 public:
  explicit Builder(const Source& source) : source_(source) {}

  int documents() const { return documents_; }
  Node take() { return std::move(root_); }
  // The innermost list or section that is still open; null for none.
  const Node* open_node() const { return stack_.empty() ? nullptr : &stack_.back().node; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) {
      source_.fail(
          mark,
          "something follows the end of the first document; a file holds one (several documents "
          "are divided by \"---\"), and text with quotes or brackets inside stands in quotes as a "
          "whole");
    }
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    check_plain(mark, "?", anchor);
    add(mark, {.kind = Node::Kind::kNothing});
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override {
    source_.fail(mark, kNoAnchors);
  }
  void OnAnchor(const YAML::Mark& mark, const std::string& /*name*/) override {
    source_.fail(mark, kNoAnchors);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    const bool quoted = tag == "!";
    if (quoted) {
      check_quotes(mark);
      // The parser makes single bytes of \_ and \N.
      for (std::size_t i = 0; i < value.size();) {
        const std::size_t length = utf8_at(value, i).length;
        if (length == 0) {
          source_.fail(mark, "an escape in this text makes no UTF-8; write \\u and four digits");
        }
        i += length;
      }
    } else {
      check_plain(mark, tag, anchor);
      if (!source_.rest(mark).starts_with(value)) {
        source_.fail(mark, "this text goes on in the next line; write it on one line");
      }
    }
    if (anchor != 0) {
      source_.fail(mark, kNoAnchors);
    }
    add(mark, {.kind = Node::Kind::kScalar, .text = value, .quoted = quoted});
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    open(mark, tag, anchor, Node::Kind::kList);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    open(mark, tag, anchor, Node::Kind::kMap);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    Node node;
    Node key;
    bool has_key = false;
    std::map<std::string, int, std::less<>> lines{};  // of the keys so far
  };

  void check_plain(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) const {
    if (anchor != 0) {
      source_.fail(mark, kNoAnchors);
    }
    if (tag != "?" && !tag.empty()) {
      source_.fail(mark, kNoTags);
    }
  }
  // The parser takes a quote that is never closed for one that closes at the end of the file.
  void check_quotes(const YAML::Mark& mark) const {
    const std::string_view line = source_.rest(mark);
    const char quote = line.empty() ? ' ' : line[0];
    if (quote == '|' || quote == '>') {
      source_.fail(mark,
                   "blocks of text (| and >) are not used in configurations; write it on one line");
    }
    if (quote != '"' && quote != '\'') {
      source_.fail(mark, quote == '&' ? kNoAnchors : kNoTags);
    }
    for (std::size_t i = 1; i < line.size(); ++i) {
      if (quote == '"' && line[i] == '\\') {
        ++i;
      } else if (line[i] == quote) {
        if (quote == '"' || i + 1 == line.size() || line[i + 1] != quote) {
          return;
        }
        ++i;  // '' is one quote
      }
    }
    source_.fail(mark, format("this quote is never closed on its line; add {}", quote));
  }
  void add(const YAML::Mark& mark, Node node) {
    if (++nodes_ > kMostNodes) {
      source_.fail(mark, format("more than {} values", kMostNodes));
    }
    node.place = source_.place(mark);
    put(std::move(node));
  }
  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            Node::Kind kind) {
    check_plain(mark, tag, anchor);
    if (stack_.size() >= kMostLevels) {
      source_.fail(mark, format("nested deeper than {} levels", kMostLevels));
    }
    if (++nodes_ > kMostNodes) {
      source_.fail(mark, format("more than {} values", kMostNodes));
    }
    if (!stack_.empty() && stack_.back().node.kind == Node::Kind::kMap && !stack_.back().has_key) {
      source_.fail(
          mark, "a list or section as a key, or a bracket that is never closed; a key is a word");
    }
    stack_.push_back({.node = {.kind = kind, .place = source_.place(mark)}, .key = {}});
  }
  void close() {
    Node done = std::move(stack_.back().node);
    stack_.pop_back();
    put(std::move(done));
  }
  void put(Node node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& top = stack_.back();
    if (top.node.kind == Node::Kind::kList) {
      top.node.items.push_back(std::move(node));
    } else if (top.has_key) {
      top.node.keys.push_back(std::move(top.key));
      top.node.items.push_back(std::move(node));
      top.has_key = false;
    } else {
      take_key(top, std::move(node));
    }
  }
  static void take_key(Open& top, Node node) {
    if (node.kind != Node::Kind::kScalar || node.text.empty()) {
      fail_at(node.place, "nothing where a key is expected; a key is a word");
    }
    if (node.text == "<<") {
      fail_at(node.place, "merge keys (<<) are not used in configurations; write the keys out");
    }
    const auto [first, fresh] = top.lines.emplace(node.text, node.place.line);
    if (!fresh) {
      fail_at(node.place, format("{}: this key is there twice, first in line {}; keep one",
                                 in_quotes(node.text), first->second));
    }
    top.key = std::move(node);
    top.has_key = true;
  }

  const Source& source_;
  std::vector<Open> stack_;
  Node root_;
  std::size_t nodes_ = 0;
  int documents_ = 0;
};

// Without the mark that some editors put first, and with one kind of line end.
std::string normalised(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) {
    text.remove_prefix(3);
  }
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r' || i + 1 == text.size() || text[i + 1] != '\n') {
      out += text[i];
    }
  }
  return out +
         '\n';  // the parser sees quotes that the end of the file cuts off otherwise than others
}

[[noreturn]] void explain(const Source& source, const Builder& builder, const YAML::Exception& e) {
  const std::string_view rest = source.rest(e.mark);
  const char c = rest.empty() ? ' ' : rest[0];
  if (c == '*' || c == '&') {
    source.fail(e.mark, kNoAnchors);
  }
  if (c == '@' || c == '`' || c == '%') {
    source.fail(e.mark, format("a value does not begin with {}; put it in quotes", c));
  }
  const Node* open = builder.open_node();
  if (open != nullptr && rest.empty() && e.msg.find("flow not found") != std::string::npos) {
    fail_at(open->place, "this bracket is never closed");
  }
  // The parser quotes single bytes of the file.
  std::string why = e.msg;
  std::replace_if(
      why.begin(), why.end(), [](char k) { return k < 0x20 || k == 0x7F; }, '?');
  source.fail(
      e.mark,
      format("not YAML: {}; look for an indent, a colon, a bracket or a quote that is amiss", why));
}

}  // namespace

std::string to_string(const Place& p) {
  return p.line > 0 ? format("{}:{}:{}", p.file, p.line, p.column) : p.file;
}

void fail_at(const Place& place, const std::string& message) {
  throw ConfigError(format("{}: {}", to_string(place), message));
}

void check_bytes(std::string_view text, const std::string& name) {
  if (text.size() > kMostBytes) {
    throw ConfigError(
        format("{}: {} bytes; a configuration has at most {}", name, text.size(), kMostBytes));
  }
  Place here{name, 1, 1};
  for (std::size_t i = 0; i < text.size();) {
    const Utf8 c = utf8_at(text, i);
    if (c.length == 0) {
      fail_at(here, "a byte that is not UTF-8; save the file as UTF-8");
    }
    if (c.code == '\t') {
      fail_at(here, "a tab; YAML indents with spaces");
    }
    if (c.code == '\r' && (i + 1 == text.size() || text[i + 1] != '\n')) {
      fail_at(here,
              "a carriage return inside a line, where some programs see a new line; remove it");
    }
    if ((c.code < 0x20 && c.code != '\n' && c.code != '\r') || c.code == 0x7F) {
      fail_at(here,
              format("a control character (code {}); a configuration is plain text", int(c.code)));
    }
    if (is_hidden(c.code) && !(c.code == 0xFEFF && i == 0)) {
      fail_at(here, format("an invisible character (U+{}); remove it", hex_text(c.code)));
    }
    if (c.code == '%' && here.column == 1) {
      fail_at(here, "directives (%) are not used in configurations");
    }
    i += c.length;
    if (c.code == '\n') {
      ++here.line;
      here.column = 1;
    } else if (c.code != 0xFEFF) {
      ++here.column;
    }
  }
}

Node read(std::string_view text, const std::string& name) {
  check_bytes(text, name);
  const Source source(normalised(text), name);
  Builder builder(source);
  try {
    std::istringstream in(source.text());
    YAML::Parser parser(in);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& e) {
    explain(source, builder, e);
  }
  return builder.take();
}

}  // namespace penstock::io::yaml
