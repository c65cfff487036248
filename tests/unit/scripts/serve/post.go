// Posts a body of so many bytes and prints what is answered: the status, and the body in the next line.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
)

func main() {
	size, _ := strconv.Atoi(os.Args[2])
	answer, err := http.Post(os.Args[1], "image/jpeg", bytes.NewReader(make([]byte, size)))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("%d\n%s", answer.StatusCode, body)
}
