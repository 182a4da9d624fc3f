#pragma once

#include <nlohmann/json_fwd.hpp>

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/runtime/tracked_text.h"

namespace vlmtrain::text::jinja {

class Object;
struct Sequence;
struct Dict;

/// A text, with what is asked of it again and again.
struct Text {
  explicit Text(TrackedText text, bool is_escaped = false);
  std::string_view view() const { return content.bytes(); }

  TrackedText content;
  bool is_ascii;
  size_t length;    ///< in code points
  bool is_escaped;  ///< by the filters escape and safe: what + joins to it is escaped too
};

/// A value as Python has it, with what a template can do to it. Cheap to copy: data is shared and never changes.
class Value {
 public:
  /// What a name that nothing was given to has; `message` is what an error about it says ("" for "it is undefined").
  struct Undefined {
    std::shared_ptr<const std::string> message;
  };
  struct None {};

  Value() = default;  // undefined
  static Value undefined() { return {}; }
  static Value undefined(std::string message);
  static Value none() { return Value(Data(None{})); }
  explicit Value(std::same_as<bool> auto value) : data_(value) {}
  explicit Value(double value) : data_(value) {}
  template <std::integral T>
  requires(!std::same_as<T, bool>) explicit Value(T value) : data_(static_cast<int64_t>(value)) {}
  explicit Value(std::shared_ptr<const Text> text) : data_(std::move(text)) {}
  explicit Value(std::shared_ptr<const Sequence> sequence) : data_(std::move(sequence)) {}
  explicit Value(std::shared_ptr<const Dict> dict) : data_(std::move(dict)) {}
  explicit Value(std::shared_ptr<Object> object) : data_(std::move(object)) {}

  /// A text without origin. `bytes` is UTF-8; what is not becomes U+FFFD.
  static Value text(std::string bytes);
  /// A text all of whose characters are of `origin` (>= 0).
  static Value text(std::string bytes, int origin);
  static Value text(TrackedText text, bool is_escaped = false) {
    return Value(std::make_shared<const Text>(std::move(text), is_escaped));
  }
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value dict(std::vector<std::pair<std::string, Value>> entries);
  /// Texts of it are without origin. Throws UserError (bad data) for a number beyond 64 bits.
  static Value from_json(const nlohmann::ordered_json& json);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  /// The value as this type, or null.
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&data_); }
  const double* real() const { return std::get_if<double>(&data_); }
  const Text* text() const { return get_shared<Text>(); }
  const Sequence* sequence() const { return get_shared<Sequence>(); }
  const Dict* dict() const { return get_shared<Dict>(); }
  Object* object() const {
    const auto* object = std::get_if<std::shared_ptr<Object>>(&data_);
    return object != nullptr ? object->get() : nullptr;
  }
  std::shared_ptr<const Sequence> shared_sequence() const { return std::get<std::shared_ptr<const Sequence>>(data_); }
  /// An integer, True and False as 1 and 0 with them, as Python has it.
  bool to_integer(int64_t& out) const;

  /// What an error about this undefined value says.
  std::string get_undefined_message() const;
  /// Python's name of its type.
  std::string_view type_name() const;
  /// How deep lists lie in it.
  int depth() const;
  /// Whether both are one and the same value.
  bool is_same(const Value& other) const;

 private:
  using Data = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
                            std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>, std::shared_ptr<Object>>;
  explicit Value(Data data) : data_(std::move(data)) {}
  template <class T>
  const T* get_shared() const {
    const auto* pointer = std::get_if<std::shared_ptr<const T>>(&data_);
    return pointer != nullptr ? pointer->get() : nullptr;
  }

  Data data_;
};

/// The depth of what holds a value of `depth`. Throws Failure where that is too deep.
int get_container_depth(int depth);

/// Python's lists, and all that can be walked through.
struct Sequence {
  enum class Type { kList, kTuple, kRange, kKeys, kValues, kItems, kGenerator };

  /// Throws Failure where lists lie too deep in it.
  Sequence(Type type, std::vector<Value> items);
  bool has_length() const { return type != Type::kGenerator; }
  bool can_index() const { return type == Type::kList || type == Type::kTuple || type == Type::kRange; }

  Type type;
  std::vector<Value> items;
  int depth;
  bool is_group = false;              ///< what groupby gives: a tuple with names for its items
  mutable bool is_exhausted = false;  ///< of a generator, which gives its items once
};

/// Keys are texts, numbers, booleans or None, each once.
struct Dict {
  explicit Dict(std::vector<std::pair<Value, Value>> entries);
  const Value* find(std::string_view key) const;
  const Value* find(const Value& key) const;

  std::vector<std::pair<Value, Value>> entries;
  int depth;
};

/// Puts the entry in, in place of one with that key. Throws Failure for a key that no dict here can have.
void insert_or_assign(std::vector<std::pair<Value, Value>>& entries, Value key, Value value);

}  // namespace vlmtrain::text::jinja
