#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain::io {

/// A value of a pickle. The Unpickler owns its items.
struct PickleValue {
  enum class Kind {
    kNone,
    kBool,
    kInt,
    kFloat,  ///< the number itself is not stored
    kString,
    kTuple,
    kList,
    kDict,
    kGlobal,   ///< a function or class by name
    kOpaque,   ///< result of a call that the resolver does not implement
    kStorage,  ///< memory that tensors share
    kTensor,
  };
  Kind kind = Kind::kNone;
  int64_t integer = 0;                         ///< kInt
  std::string text = {};                       ///< kString; kGlobal: "module.name"; kOpaque: name of the function
  std::vector<const PickleValue*> items = {};  ///< kTuple, kList; kDict: keys and values alternate
  at::Tensor tensor = {};                      ///< kTensor; kStorage: its elements, a tensor of shape [n]
};

/// Interface to the functions that a pickle calls and to objects that are stored outside of it.
class PickleResolver {
 public:
  PickleResolver() = default;
  virtual ~PickleResolver() = default;
  PickleResolver(const PickleResolver&) = delete;
  PickleResolver& operator=(const PickleResolver&) = delete;

  /// Returns the result of `function` ("module.name") for `arguments`, a kTuple. Returns a kOpaque
  /// for an unknown function.
  virtual PickleValue call_function(const std::string& function, const PickleValue& arguments) = 0;
  /// Returns the external object that `id` names, as Python's Unpickler.persistent_load().
  virtual PickleValue persistent_load(const PickleValue& id) = 0;
};

/// Interpreter of Python's pickle format, protocols 2 to 5
/// (https://github.com/python/cpython/blob/main/Lib/pickletools.py). No Python code is loaded or
/// called, only functions of the resolver. Sets, byte arrays and integers of more than 64 bits are
/// not supported. Several values may refer to the same value; in a malformed file, a value may
/// contain itself.
class Unpickler {
 public:
  /// Interprets `pickle_content`. Throws data_error that names `source` for damaged or unsupported
  /// pickles. `pickle_content` and `resolver` are used only by the constructor.
  Unpickler(std::string_view pickle_content, std::string source, PickleResolver& resolver);
  Unpickler(const Unpickler&) = delete;
  Unpickler& operator=(const Unpickler&) = delete;

  /// Returns the value of the pickle, valid during the lifetime of this object.
  const PickleValue& result() const { return *result_; }

 private:
  using Kind = PickleValue::Kind;
  enum class Opcode : unsigned char;

  [[noreturn]] void fail(std::string_view reason) const;
  std::string_view consume_bytes(uint64_t bytes);
  uint64_t consume_uint(size_t bytes);
  std::string consume_line();
  void push(PickleValue value);
  PickleValue* pop();
  PickleValue& top();
  std::vector<const PickleValue*> pop_to_mark();
  std::vector<const PickleValue*> pop_values(size_t count);

  // Each function executes the opcodes of one group and returns false for all other opcodes.
  bool try_execute_constant_opcode(Opcode opcode);
  bool try_execute_string_opcode(Opcode opcode);
  bool try_execute_tuple_opcode(Opcode opcode);
  bool try_execute_container_opcode(Opcode opcode);
  bool try_execute_memo_opcode(Opcode opcode);
  bool try_execute_global_opcode(Opcode opcode);

  void push_integer(std::string_view bytes);
  void add_items(Kind kind, const std::vector<const PickleValue*>& items);
  void store_in_memo(uint64_t index);
  void push_from_memo(uint64_t index);
  void execute_call();

  size_t max_memo_entries_;  // size of the pickle: it cannot store more values than it has bytes
  std::string_view remaining_pickle_;
  std::string source_;
  PickleResolver* resolver_;
  std::deque<PickleValue> values_;  // owns all values; recursive destruction could exhaust the stack
  std::vector<PickleValue*> stack_;
  std::vector<size_t> mark_positions_;  // sizes of the stack at kMark opcodes
  std::vector<PickleValue*> memo_;
  const PickleValue* result_ = nullptr;
};

}  // namespace vlmtrain::io
