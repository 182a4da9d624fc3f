#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain::io {

/// A value of a pickle. Those that it consists of belong to the Pickle that made it.
struct PickleValue {
  enum class Kind {
    kNone,
    kBool,
    kInt,
    kFloat,  ///< the number itself is of no use here
    kString,
    kTuple,
    kList,
    kDict,
    kGlobal,   ///< a function or class by name
    kOpaque,   ///< what a call that nobody knows would have returned
    kStorage,  ///< of tensors
    kTensor,
  };
  Kind kind = Kind::kNone;
  int64_t integer = 0;    ///< kInt
  std::string text = {};  ///< kString; kGlobal: "module.name"; kOpaque: the name of what was called
  std::vector<const PickleValue*> items = {};  ///< kTuple, kList; kDict: keys and values in turn
  at::Tensor tensor = {};                      ///< kTensor; kStorage: its elements, [n]
};

/// Who knows some functions that a pickle calls, and the values that lie beside it.
class PickleResolver {
 public:
  PickleResolver() = default;
  virtual ~PickleResolver() = default;
  PickleResolver(const PickleResolver&) = delete;
  PickleResolver& operator=(const PickleResolver&) = delete;

  /// What `function` ("module.name") returns for `arguments`, a kTuple; a kOpaque where it is not known.
  virtual PickleValue call(const std::string& function, const PickleValue& arguments) = 0;
  virtual PickleValue persistent_load(const PickleValue& id) = 0;
};

/// A program of Python's pickle format, protocols 2 to 5
/// (https://github.com/python/cpython/blob/main/Lib/pickletools.py), which is run without Python: no code is loaded or
/// called but the host's. Sets, arrays of bytes and numbers beyond 64 bits are refused. Several values may refer to
/// one, and a damaged file's to themselves.
class Unpickler {
 public:
  /// Runs the program; `source` is named in errors. data_error where it is damaged, or asks for what is refused.
  Unpickler(std::string_view pickle_bytes, std::string source, PickleResolver& resolver);
  Unpickler(const Unpickler&) = delete;
  Unpickler& operator=(const Unpickler&) = delete;

  const PickleValue& result() const { return *result_; }

 private:
  using Kind = PickleValue::Kind;
  enum class Opcode : unsigned char;

  [[noreturn]] void fail(std::string_view reason) const;
  std::string_view consume(uint64_t bytes);
  uint64_t consume_uint(size_t bytes);
  std::string consume_line();
  void push(PickleValue value);
  PickleValue* pop();
  PickleValue& top();
  std::vector<const PickleValue*> pop_to_mark();
  std::vector<const PickleValue*> pop_last(size_t count);

  // Each does what its opcodes say, and returns false for others.
  bool execute_constant(Opcode opcode);
  bool execute_string(Opcode opcode);
  bool execute_tuple(Opcode opcode);
  bool execute_container(Opcode opcode);
  bool execute_memo(Opcode opcode);
  bool execute_global(Opcode opcode);

  void push_integer(std::string_view bytes);
  void add_items(Kind kind, const std::vector<const PickleValue*>& items);
  void memo_put(uint64_t index);
  void memo_get(uint64_t index);
  void call_function();

  size_t max_memo_size_;  // of the memo
  std::string_view remaining_;
  std::string source_;
  PickleResolver* resolver_;
  std::deque<PickleValue> values_;  // all there are, so that none is destroyed recursively
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;  // sizes of the stack
  std::vector<PickleValue*> memo_;
  const PickleValue* result_ = nullptr;
};

}  // namespace vlmtrain::io
