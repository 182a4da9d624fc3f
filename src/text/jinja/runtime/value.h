#pragma once

#include <nlohmann/json_fwd.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace vlmtrain::text::jinja {

/// Bytes [begin, end) of a text that come from one input text. `origin` is the number that the
/// caller gave this input in Value::text(): the index of a turn, or kBlockTypeOrigin. An empty span
/// marks the position of an empty input text.
struct OriginSpan {
  size_t begin;
  size_t end;
  int origin;
  bool empty() const { return begin == end; }
  bool operator==(const OriginSpan&) const = default;
};

/// Bytes [begin, end) of a text that are the output of a `generation` block.
struct GeneratedSpan {
  size_t begin;
  size_t end;
  bool operator==(const GeneratedSpan&) const = default;
};

/// A UTF-8 text that records the origin of its characters. Origin spans are in order and do not
/// overlap; adjacent spans with the same origin are merged. Bytes outside of all spans come from
/// the template itself.
class TextWithOrigins {
 public:
  TextWithOrigins() = default;
  explicit TextWithOrigins(std::string bytes) : bytes_(std::move(bytes)) {}
  /// Creates a text whose characters all have the origin `origin`. An empty text gets an empty
  /// span.
  TextWithOrigins(std::string bytes, int origin)
      : bytes_(std::move(bytes)), origin_spans_{{0, bytes_.size(), origin}} {}

  const std::string& bytes() const { return bytes_; }
  std::span<const OriginSpan> origin_spans() const { return origin_spans_; }
  /// Returns the output of `generation` blocks, in order and without overlap. No span is empty.
  std::span<const GeneratedSpan> generated_spans() const { return generated_spans_; }
  /// Marks the whole text as output of a `generation` block.
  void mark_as_generated();
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  /// Returns bytes [begin, end) with their origins. An empty slice has an empty span for each
  /// origin next to it. REQUIRES begin <= end <= size() at character boundaries.
  TextWithOrigins slice(size_t begin, size_t end) const;

  /// Appends UTF-8 text without origin.
  void append(std::string_view plain_text) { bytes_ += plain_text; }
  /// Appends `other`, or bytes [begin, end) of it, with their origins.
  void append(const TextWithOrigins& other) { append(other, 0, other.size()); }
  void append(const TextWithOrigins& other, size_t begin, size_t end);

  /// Adds an empty span for each origin of `source` if this text is empty. For results made from
  /// `source`: otherwise an answer that becomes empty would have no position.
  void inherit_origins(const TextWithOrigins& source);

  /// Appends a transformed copy of `source`. Calls transform(begin, end, out) for consecutive byte
  /// ranges of `source`, each with one origin; `transform` appends the new text of the range to the
  /// string `out`. The new text gets the origin of the range.
  template <class Transform>
  void append_transformed(const TextWithOrigins& source, Transform transform) {
    size_t pos = 0;
    for (const OriginSpan& origin_span : source.origin_spans_) {
      if (pos < origin_span.begin) transform(pos, origin_span.begin, bytes_);
      const size_t begin = bytes_.size();
      if (!origin_span.empty()) transform(origin_span.begin, origin_span.end, bytes_);
      add_origin_span({begin, bytes_.size(), origin_span.origin});
      pos = origin_span.end;
    }
    if (pos < source.size()) transform(pos, source.size(), bytes_);
  }

 private:
  /// Adds a span at the end of the text. Merges it with an adjacent span of the same origin.
  void add_origin_span(OriginSpan origin_span);

  std::string bytes_;
  std::vector<OriginSpan> origin_spans_;
  std::vector<GeneratedSpan> generated_spans_;
};

class Object;
struct Sequence;
struct Dict;

/// A string value, with properties that the constructor computes once.
struct TextValue {
  /// `is_escaped`: see the field.
  explicit TextValue(TextWithOrigins text, bool is_escaped = false);
  std::string_view view() const { return content.bytes(); }

  TextWithOrigins content;
  bool is_ascii;
  size_t length;  ///< in code points
  /// Whether the text is safe HTML: the result of the filters escape and safe (Markup in Jinja2).
  /// The operator `+` then escapes the other operand.
  bool is_escaped;
};

/// A value of the template language, with Python's types. Cheap to copy, because copies share their
/// data. All data except objects is immutable.
class Value {
 public:
  /// The value of a name, attribute or item that does not exist. `message` is the text of errors
  /// about it; null means a default text.
  struct Undefined {
    std::shared_ptr<const std::string> message;
  };
  /// The value `none`.
  struct None {};

  Value() = default;  // undefined
  static Value undefined() { return {}; }
  /// Returns an undefined value whose errors have the text `message`.
  static Value undefined(std::string message);
  static Value none() { return Value(Variant(None{})); }
  explicit Value(std::same_as<bool> auto value) : variant_(value) {}
  explicit Value(double value) : variant_(value) {}
  template <std::integral T>
  requires(!std::same_as<T, bool>) explicit Value(T value) : variant_(static_cast<int64_t>(value)) {}
  explicit Value(std::shared_ptr<const TextValue> text) : variant_(std::move(text)) {}
  explicit Value(std::shared_ptr<const Sequence> sequence) : variant_(std::move(sequence)) {}
  explicit Value(std::shared_ptr<const Dict> dict) : variant_(std::move(dict)) {}
  explicit Value(std::shared_ptr<Object> object) : variant_(std::move(object)) {}

  /// Returns a text without origin. Invalid UTF-8 becomes U+FFFD.
  static Value text(std::string bytes);
  /// Returns a text whose characters all have the origin `origin`. REQUIRES origin >= 0.
  static Value text(std::string bytes, int origin);
  /// Returns a text with the origins of `text`.
  static Value text(TextWithOrigins text, bool is_escaped = false) {
    return Value(std::make_shared<const TextValue>(std::move(text), is_escaped));
  }
  /// Each returns a container with these items. dict() keeps the last value of a duplicate key.
  /// Throws EvaluationError above kMaxValueDepth.
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value dict(std::vector<std::pair<std::string, Value>> entries);
  /// Returns the value of `json`. Its texts have the origin `origin`, those of keys none; without
  /// `origin`, all have none. Throws UserError (bad data) for numbers beyond 64 bits.
  static Value from_json(const nlohmann::ordered_json& json, std::optional<int> origin = std::nullopt);

  bool is_undefined() const { return std::holds_alternative<Undefined>(variant_); }
  bool is_none() const { return std::holds_alternative<None>(variant_); }
  /// Each returns the value if it has exactly this type, else null. Valid as long as this value.
  const bool* boolean() const { return std::get_if<bool>(&variant_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&variant_); }
  const double* float_value() const { return std::get_if<double>(&variant_); }
  const TextValue* text() const { return get_if<TextValue>(); }
  const Sequence* sequence() const { return get_if<Sequence>(); }
  const Dict* dict() const { return get_if<Dict>(); }
  Object* object() const {
    const auto* object = std::get_if<std::shared_ptr<Object>>(&variant_);
    return object != nullptr ? object->get() : nullptr;
  }
  /// REQUIRES that the value is a sequence.
  std::shared_ptr<const Sequence> shared_sequence() const {
    return std::get<std::shared_ptr<const Sequence>>(variant_);
  }
  /// Stores the value in `out` if it is an int or bool (0 or 1). Returns whether it is.
  bool try_to_integer(int64_t& out) const;

  /// Returns the message of errors about this value. REQUIRES is_undefined().
  std::string get_undefined_message() const;
  /// Returns Python's name of the type, such as "str".
  std::string_view type_name() const;
  /// Returns the depth of nested containers, 0 for scalars.
  int depth() const;
  /// Returns whether both are the same object or equal scalars of the same type, as Python's `is`.
  bool is_identical(const Value& other) const;

 private:
  using Variant = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const TextValue>,
                               std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>, std::shared_ptr<Object>>;
  explicit Value(Variant variant) : variant_(std::move(variant)) {}
  template <class T>
  const T* get_if() const {
    const auto* pointer = std::get_if<std::shared_ptr<const T>>(&variant_);
    return pointer != nullptr ? pointer->get() : nullptr;
  }

  Variant variant_;
};

/// Returns the depth of a container whose deepest value has the depth `depth`. Throws
/// EvaluationError above kMaxValueDepth.
int compute_container_depth(int depth);

/// A list or another iterable that is neither a text nor a dict.
struct Sequence {
  /// The Python type of the sequence.
  enum class Type { kList, kTuple, kRange, kKeys, kValues, kItems, kGenerator };

  /// Throws EvaluationError above kMaxValueDepth.
  Sequence(Type type, std::vector<Value> items);
  /// Returns whether len() works.
  bool has_length() const { return type != Type::kGenerator; }
  /// Returns whether items can be read by index.
  bool is_indexable() const { return type == Type::kList || type == Type::kTuple || type == Type::kRange; }

  Type type;
  std::vector<Value> items;
  int depth;                          ///< see Value::depth()
  bool is_groupby_item = false;       ///< item of groupby: a tuple with the attributes `grouper` and `list`
  mutable bool is_exhausted = false;  ///< of a generator, which yields its items once
};

/// A dict. Keys are texts, numbers, booleans or None, without duplicates, in the order of
/// insertion.
struct Dict {
  /// Throws EvaluationError above kMaxValueDepth. REQUIRES entries without duplicate keys.
  explicit Dict(std::vector<std::pair<Value, Value>> entries);
  /// Returns the value of `key`, or null.
  const Value* find(std::string_view key) const;
  const Value* find(const Value& key) const;

  std::vector<std::pair<Value, Value>> entries;
  int depth;
};

/// Sets the value of `key` in `entries`, which is searched linearly. Throws EvaluationError for
/// keys that are not texts, numbers, booleans or None.
void insert_or_assign(std::vector<std::pair<Value, Value>>& entries, Value key, Value value);

}  // namespace vlmtrain::text::jinja
