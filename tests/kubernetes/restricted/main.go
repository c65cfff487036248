// Reads pod templates from standard input, a JSON list, and prints which of them Kubernetes' Pod Security Standard "restricted"
// refuses, and why. The rules are those of the API server itself.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

func main() {
	var pods []corev1.PodTemplateSpec
	if err := json.NewDecoder(os.Stdin).Decode(&pods); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	level := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	for index, pod := range pods {
		found := policy.AggregateCheckResults(evaluator.EvaluatePod(level, &pod.ObjectMeta, &pod.Spec))
		if !found.Allowed {
			fmt.Printf("%d: %s\n", index, found.ForbiddenDetail())
		}
	}
}
