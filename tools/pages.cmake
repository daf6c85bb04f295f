# tools/pages.cmake — what the command line says of itself, as files: its manual page, and completion for shells
foreach(page "attune.1 man" "attune.bash completion bash" "_attune completion zsh" "attune.fish completion fish")
  separate_arguments(page)
  list(POP_FRONT page file)
  execute_process(COMMAND ${ATTUNE} ${page} OUTPUT_FILE ${INTO}/${file} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
