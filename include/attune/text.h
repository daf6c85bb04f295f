// include/attune/text.h — the language as text: names for captures, parameters and sub-expressions
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <attune/attention.h>

namespace attune {

/// The names that expressions may use, and the expressions themselves.
///   Text text;
///   text.capture("slope", slope).param("cap", 30.0f).let("distance", "f32(kv - q)");
///   Attention a{.score = text.score("cap * tanh((s + slope[h] * distance) / cap)"), .mask = text.mask("kv <= q")};
/// Variables: s (score) or p (prob), b h q kv q_len kv_len. A mistake is an Error that points into the text.
class Text {
 public:
  Text();
  /// A tensor, or Tensor::declared for a tensor that calls bind.
  Text& capture(std::string name, const Tensor& tensor);
  Text& param(std::string name, float value);
  Text& param(std::string name, int value);
  /// Later expressions may use the name. The expression may read whatever the text that uses it may read.
  Text& let(std::string name, std::string_view expression);

  /// Errors name the text `called`.
  Score score(std::string_view expression, std::string called = "score") const;
  Mask mask(std::string_view expression, std::string called = "mask") const;
  Prob prob(std::string_view expression, std::string called = "prob") const;
  Sink sink(std::string_view expression, std::string called = "sink") const;

 private:
  struct Names;
  std::shared_ptr<Names> names_;
};

}  // namespace attune
