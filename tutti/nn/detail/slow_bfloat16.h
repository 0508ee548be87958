/// What is said of bfloat16 where the processor does not multiply in it. Not for users.
/// Thread rule: functions may be called from any thread.
#pragma once

#include <functional>
#include <string>

namespace tutti::detail {

/// "" where the processor `multiplies` in it (AVX512_BF16, AMX); else a sentence that says how many
/// times as long as in float32 a product takes, which `measure` gives.
std::string words_of_slow_bfloat16(bool multiplies, const std::function<double()>& measure);

/// Logs that sentence of this processor as a warning, the first time that it is called.
void warn_where_bfloat16_is_slow();

}  // namespace tutti::detail
